"""SkyRL's Tinker API on a CPU: `python -m server.local --base-model FOLDER --port 8000`, with the flags of SkyRL's API.

SkyRL's own entry starts its engine through `uv run`, with flags that it reads from its parent's command line. Here the
engine is started with this Python, and with our backend (server/local/engine.py).
"""

import argparse
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from skyrl.tinker.config import EngineConfig, add_model, config_to_argv


def engine_command(_parent_command: list[str], config: BaseModel) -> list[str]:
    """In place of SkyRL's `_build_uv_run_cmd_engine`."""
    return [sys.executable, "-m", "server.local.engine", *config_to_argv(config)]


def main() -> None:
    """Serve until stopped; as SkyRL's module does under `__main__`, which is no function."""
    parser = argparse.ArgumentParser(prog="python -m server.local", description=__doc__)
    add_model(parser, EngineConfig)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on")
    parser.set_defaults(backend="local")
    args = vars(parser.parse_args())
    host, port = args.pop("host"), args.pop("port")

    # Threads that wait for each other in a loop take the core that the other process needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _LazyModule("torch")
    import uvicorn  # noqa: PLC0415 - after the line above
    from skyrl.tinker import api  # noqa: PLC0415
    from skyrl.utils.log import get_uvicorn_log_config  # noqa: PLC0415

    api._build_uv_run_cmd_engine = engine_command
    api.app.state.engine_config = EngineConfig.model_validate(args)
    uvicorn.run(
        api.app,
        host=host,
        port=port,
        log_config=get_uvicorn_log_config(),
        timeout_keep_alive=api.HTTP_KEEP_ALIVE_TIMEOUT_SECONDS,
    )


class _LazyModule(ModuleType):
    """Stands for a module that is loaded when anything of it is used.

    The API and the SDK in it import torch for images and tensors, which takes 450 MB and 2 s, and use nothing of it
    here. (importlib's LazyLoader loads the module as soon as it is imported a second time.)
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.find_spec(name)
        sys.modules[name] = self

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


if __name__ == "__main__":
    main()
