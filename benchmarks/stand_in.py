"""A stand-in for a Tinker server that takes fixed times for everything, so that what is measured is the client.

    python benchmarks/stand_in.py --port 8765

It speaks as much of the protocol as train_grpo.py and evaluate.py ask for (SkyRL 0.4.0, tinker 0.25). Its model, called
stand-in, replies with a look at the inventory and now and then with finish(), decided by the sampling seed; its trainer
answers with the sampler's logprobs and a token sum. Use the tiny model's tokenizer with it. An adapter consists of what
it was trained on, so that the tests can see whether a step was lost or trained twice.
"""

import asyncio
import hashlib
import itertools
import json
import random
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
import uvicorn
from skyrl.tinker.proto_serialization import parse_forward_backward_request, serialize_result
from skyrl.tinker.types import RequestType
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tinker_client.connection.models import TINY_MODEL, load_tokenizer, stop_token_ids
from tinker_client.play.chat import ChatTemplate

THOUGHTS = "I look at what there is before I go on, since the last craft may have used some of it up. " * 2
LOOK, FINISH = f"{THOUGHTS}<tool>view_inventory()</tool>", f"{THOUGHTS}<tool>finish()</tool>"


@dataclass(frozen=True)
class Config:
    """The times that things take, in seconds."""

    port: int = 8765
    turn_s: float = 0.5
    """One reply, from when it begins."""
    slots: int = 128
    """Replies at once; others wait."""
    forward_backward_s: float = 2.0
    """Per call. Training calls are done one after another, beside sampling."""
    optim_step_s: float = 0.3
    """Per optimizer step."""
    save_s: float = 0.3
    """Weights for a sampler, or a state."""
    finish_share: float = 0.1
    """Share of replies that end the episode."""


class StandIn:
    """The service's state: results that are not fetched yet, what is busy, adapters and saved states.

    adapters, states: by model id and by path, a hash of each batch that an optimizer step was made of.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        tokenizer = load_tokenizer(str(TINY_MODEL))
        template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
        self.replies = {text: template.reply(text) for text in (LOOK, FINISH)}
        self.results: dict[str, asyncio.Task[Response]] = {}
        self.accepted: dict[tuple[str | None, int | None], str] = {}
        self.adapters: dict[str, list[str]] = {}
        self.gradients: dict[str, str] = {}
        self.states: dict[str, list[str]] = {}
        self.numbers = itertools.count(1)
        self.slots = asyncio.Semaphore(config.slots)
        self.training = asyncio.Lock()

    def app(self) -> Starlette:
        """The routes."""
        answers: dict[str, dict[str, Any]] = {
            "client/config": {"pjwt_auth_enabled": False},
            "create_session": {"type": "create_session", "session_id": "session"},
            "session_heartbeat": {"type": "session_heartbeat"},
            "create_sampling_session": {"type": "create_sampling_session", "sampling_session_id": "sampler"},
            "telemetry": {"status": "accepted"},
            "healthz": {"status": "ok"},
            "get_server_capabilities": {"supported_models": [{"model_name": "stand-in"}]},
        }
        works: dict[str, Callable[[bytes, dict[str, Any]], Coroutine[Any, Any, Response]]] = {
            "asample": self.sample,
            "forward_backward": self.forward_backward,
            "optim_step": self.optim_step,
            "save_weights": self.save_weights,
            "load_weights": self.load_weights,
            "save_weights_for_sampler": self.save_weights_for_sampler,
            "create_model": self.create_model,
            "unload_model": self.unload_model,
        }
        routes = [
            Route(f"/api/v1/{name}", _constant(answer), methods=["GET", "POST"]) for name, answer in answers.items()
        ]
        routes += [Route(f"/api/v1/{name}", self._start(work), methods=["POST"]) for name, work in works.items()]
        routes += [
            Route("/api/v1/retrieve_future", self.retrieve_future, methods=["POST"]),
            Route("/api/v1/weights_info", self.weights_info, methods=["POST"]),
            Route("/api/v1/training_runs/{model}/checkpoints/{name:path}", self.delete_state, methods=["DELETE"]),
        ]
        return Starlette(routes=routes)

    def _start(
        self, work: Callable[[bytes, dict[str, Any]], Coroutine[Any, Any, Response]]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def start(request: Request) -> Response:
            is_json = "json" in request.headers.get("content-type", "")
            body = await request.body()
            parsed = await request.json() if is_json else parse_forward_backward_request(body)[0]
            if "model_id" in parsed and parsed["model_id"] not in self.adapters:
                return JSONResponse({"detail": "Model not found"}, status_code=404)
            key = (parsed.get("model_id"), parsed.get("seq_id"))
            if None in key or key not in self.accepted:  # else one that is sent again, since its answer got lost
                self.accepted[key] = str(next(self.numbers))
                self.results[self.accepted[key]] = asyncio.create_task(work(body, parsed))
            number = self.accepted[key]
            return JSONResponse({"future_id": number, "request_id": number, "status": "pending"})

        return start

    async def retrieve_future(self, request: Request) -> Response:
        """Wait for a result."""
        number = (await request.json())["request_id"]
        return await asyncio.shield(self.results[number])

    async def sample(self, body: bytes, request: dict[str, Any]) -> Response:
        """A reply after `turn_s` in one of the slots."""
        seed, most = request["sampling_params"].get("seed") or 0, request["sampling_params"]["max_tokens"]
        async with self.slots:
            if most > 1:  # the single token that a new sampling client is primed with is free
                await asyncio.sleep(self.config.turn_s)
        ends = random.Random(seed).random() < self.config.finish_share
        tokens = self.replies[FINISH if ends else LOOK][:most]
        sequence = {"stop_reason": "stop", "tokens": tokens, "logprobs": [-0.5] * len(tokens)}
        return _protobuf(RequestType.SAMPLE, {"sequences": [sequence], "prompt_logprobs": None})

    async def forward_backward(self, body: bytes, request: dict[str, Any]) -> Response:
        """A pass over a batch; without gradients it is free."""
        data, forward_only = request["forward_backward_input"]["data"], parse_forward_backward_request(body)[1]
        if not forward_only:
            self.gradients[request["model_id"]] = hashlib.blake2b(json.dumps(data, sort_keys=True).encode()).hexdigest()
            async with self.training:
                await asyncio.sleep(self.config.forward_backward_s)
        logprobs, loss = self.losses([datum["loss_fn_inputs"] for datum in data], request["model_id"], forward_only)
        outputs = [{"logprobs": {"data": values, "dtype": "float32", "shape": [len(values)]}} for values in logprobs]
        answer = {"loss_fn_output_type": "scalar", "loss_fn_outputs": outputs, "metrics": {"loss:sum": loss}}
        return _protobuf(RequestType.FORWARD_BACKWARD, answer)

    def losses(self, inputs: list[dict[str, Any]], model: str, forward_only: bool) -> tuple[list[list[float]], float]:
        """The sampler's logprobs as the trainer's, and the token sum of the loss."""
        logprobs = [i["logprobs"]["data"] if "logprobs" in i else [-0.5] * len(i["weights"]["data"]) for i in inputs]
        return logprobs, -sum(sum(i["advantages"]["data"]) for i in inputs if "advantages" in i)

    async def optim_step(self, body: bytes, request: dict[str, Any]) -> Response:
        """A gradient norm of 1."""
        async with self.training:
            await asyncio.sleep(self.config.optim_step_s)
        self.adapters[request["model_id"]].append(self.gradients.pop(request["model_id"], "nothing"))
        return JSONResponse({"metrics": {"skyrl.ai/grad_norm": 1.0}})

    async def save_weights(self, body: bytes, request: dict[str, Any]) -> Response:
        """A path."""
        async with self.training:
            await asyncio.sleep(self.config.save_s)
        path = f"tinker://{request['model_id']}/weights/{request['path']}"
        self.states[path] = list(self.adapters[request["model_id"]])
        return JSONResponse({"type": "save_weights", "path": path})

    async def load_weights(self, body: bytes, request: dict[str, Any]) -> Response:
        """What the state was trained on."""
        self.adapters[request["model_id"]] = list(self.states[request["path"]])
        return JSONResponse({"type": "load_weights", "path": request["path"]})

    async def weights_info(self, request: Request) -> Response:
        """Of a state that there is."""
        if (await request.json())["tinker_path"] not in self.states:
            return JSONResponse({"detail": "Checkpoint not found"}, status_code=404)
        return JSONResponse({"base_model": "stand-in", "is_lora": True, "lora_rank": 32})

    async def delete_state(self, request: Request) -> Response:
        """Nothing of it is left."""
        model, name = request.path_params["model"], request.path_params["name"]
        known = self.states.pop(f"tinker://{model}/{name}", None) is not None
        return Response(status_code=204) if known else JSONResponse({"detail": "Checkpoint not found"}, status_code=404)

    async def save_weights_for_sampler(self, body: bytes, request: dict[str, Any]) -> Response:
        """A sampling session."""
        async with self.training:
            await asyncio.sleep(self.config.save_s)
        answer = {"type": "save_weights_for_sampler", "path": None, "sampling_session_id": "sampler"}
        return JSONResponse(answer)

    async def create_model(self, body: bytes, request: dict[str, Any]) -> Response:
        """A new adapter."""
        model = f"model_{next(self.numbers)}"
        self.adapters[model] = []
        return JSONResponse({"type": "create_model", "model_id": model})

    async def unload_model(self, body: bytes, request: dict[str, Any]) -> Response:
        """Nothing to unload."""
        return JSONResponse({"type": "unload_model", "model_id": request["model_id"]})


def _constant(answer: dict[str, Any]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def respond(request: Request) -> Response:
        return JSONResponse(answer)

    return respond


def _protobuf(kind: RequestType, answer: dict[str, Any]) -> Response:
    return Response(serialize_result(kind, answer), media_type="application/x-protobuf")


if __name__ == "__main__":
    config = tyro.cli(Config)
    uvicorn.run(StandIn(config).app(), host="127.0.0.1", port=config.port, log_level="warning")
