"""A run's weights as a PEFT adapter, the folder that transformers and vLLM load."""

import json
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.errors import UserError
from tinker_client.run.run_dir import resolve_state

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def export_adapter(source: str, out: Path, config: BackendConfig) -> dict[str, Any]:
    """Write the adapter of `source`, a run directory (its last checkpoint) or a `tinker://` training path, into `out`.

    Loads the state on the server that has it (one is started where none is given, as the scripts do) and fetches it in
    the form for samplers. Returns the content of adapter_config.json. Raises UserError if `out` is not empty or the
    server keeps no adapter.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty: give another --out")
    state = resolve_state(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        archive, draft = Path(scratch) / "adapter.tar", Path(scratch) / "adapter"
        with connect(config, Path(scratch), init=state) as backend:
            adapter = backend.training_client_from(state.state_path, with_optimizer=False)
            backend.download_adapter(adapter, archive)
        content = unpack_adapter(archive, draft)
        if out.exists():
            out.rmdir()
        draft.rename(out)
    return content


def unpack_adapter(archive: Path, folder: Path) -> dict[str, Any]:
    """Turn a server's archive (tar, compressed or not) into a folder that PEFT loads whole; returns its configuration.

    SkyRL's JAX backend names no target modules, and PEFT would then fill in the model family's usual two and leave out
    the rest of the weights without an error. So they are read off the names of the tensors.
    Raises UserError if the archive holds no adapter.
    """
    folder.mkdir(parents=True)
    _extract(archive, folder)
    if not (folder / WEIGHTS).exists() or not (folder / CONFIG).exists():
        raise UserError("the server keeps no adapter for samplers: on SkyRL's GPU backends it needs merge_lora false")
    try:
        content = json.loads((folder / CONFIG).read_text())
        with safe_open(folder / WEIGHTS, framework="numpy") as weights:
            names = list(weights.keys())
    except (ValueError, SafetensorError) as error:
        raise UserError(f"the server's adapter cannot be read ({error}): export it again") from error
    modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in names if ".lora_" in name}
    content |= {
        "peft_type": "LORA",
        "task_type": content.get("task_type") or "CAUSAL_LM",
        "target_modules": content.get("target_modules") or sorted(modules),
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    return dict(content)


def _extract(archive: Path, folder: Path) -> None:
    # By name, wherever they are in the archive, and nothing else: it comes from a server.
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if member.isfile() and name in (WEIGHTS, CONFIG):
                    source = tar.extractfile(member)
                    assert source is not None
                    with source, (folder / name).open("wb") as target:
                        shutil.copyfileobj(source, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"the server's archive cannot be read ({error}): export it again") from error
