"""A proxy between the scripts and a Tinker server that misbehaves by a seeded plan.

python -m tests.fault_proxy --target http://127.0.0.1:8000 --port 8001 --rate 0.05 --kinds drop cut_off --seed 0
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import aiohttp
import tyro
from aiohttp import web

Kind = Literal["delay", "lose_request", "lose_answer", "cut_off", "500", "429", "404"]
# Of what is passed on. The server's answer is gone after any of them but a delay.
STATUS = {"500": 500, "429": 429, "404": 404}
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Config:
    """What goes wrong."""

    target: str
    """URL of the server."""
    port: int = 0
    """Port of 127.0.0.1; 0 takes any that is free."""
    kinds: tuple[Kind, ...] = KINDS
    """A delay; a connection that ends before or after the server has done its work; half an answer; a status."""
    rate: float = 0.05
    """Share of the requests that this happens to."""
    delay_s: float = 3.0
    """The longest delay."""
    seed: int = 0
    """Decides which requests, and what happens to each."""


class FaultProxy:
    """Passes requests on, except for those that the plan is about; `faults` counts what was done."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.url = ""

    def plan(self, number: int) -> tuple[Kind | None, float]:
        """What happens to a request, and a number in [0, 1) that says when or how much."""
        rng = random.Random(f"{self.config.seed}/{number}")
        hit, kind, amount = rng.random() < self.config.rate, rng.choice(self.config.kinds), rng.random()
        return (kind if hit else None), amount

    async def run(self, started: threading.Event, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set."""
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        no_limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=no_limit, auto_decompress=False) as self._client:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.config.port).start()
            port = runner.addresses[0][1]
            self.url = f"http://127.0.0.1:{port}"
            started.set()
            await stopping.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        kind, amount = self.plan(self.requests)
        self.requests += 1
        body = await request.read()
        if kind is not None:
            self.faults[kind] += 1
        if kind == "delay":
            await asyncio.sleep(amount * self.config.delay_s)
        if kind == "lose_request":
            return self._hang_up(request)
        if kind in STATUS:
            return web.json_response({"detail": "a fault of the proxy"}, status=STATUS[kind])
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        try:
            async with self._client.request(
                request.method, f"{self.config.target}{request.rel_url}", headers=headers, data=body
            ) as answer:
                content, status = await answer.read(), answer.status
                headers = {n: v for n, v in answer.headers.items() if n.lower() in ("content-type", "content-encoding")}
        except aiohttp.ClientError:
            return self._hang_up(request)
        if kind == "lose_answer":
            return self._hang_up(request)
        if kind == "cut_off":
            response = web.StreamResponse(status=status, headers=headers)
            response.content_length = len(content) + 1
            await response.prepare(request)
            await response.write(content[: int(amount * len(content))])
            return self._hang_up(request, response)
        return web.Response(status=status, headers=headers, body=content)

    def _hang_up(self, request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return response or web.Response()


@contextmanager
def faulty(target: str, kinds: Sequence[Kind] = KINDS, **settings: float) -> Iterator[FaultProxy]:
    """A proxy on a thread, for as long as the context lasts."""
    proxy = FaultProxy(Config(target=target, kinds=tuple(kinds), **settings))
    started, loop, stopping = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy.run(started, stopping)), daemon=True)
    thread.start()
    assert started.wait(10)
    yield proxy
    loop.call_soon_threadsafe(stopping.set)
    thread.join()
    loop.close()


if __name__ == "__main__":
    config = tyro.cli(Config)
    with faulty(**vars(config)) as running:
        print(running.url, flush=True)
        threading.Event().wait()
