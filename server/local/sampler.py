"""Sampling: requests come in one by one, replies leave as they end, and all that run are decoded together.

The thread of a `Sampler` repeats two things: it reads what is new of every waiting prompt that finds a place in the
cache, one conversation after the other, and then samples one token for every running request, in one batch for each
snapshot. Neither depends on what else is there, so the same request gives the same tokens in any company.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor, nn
from transformers import PreTrainedModel

from server.local.kv_cache import CacheShape, KVCache, Slot, Tokens, round_up
from server.local.model import ROWS, MergedModel, Snapshot
from server.local.sampling import Draw, draw
from tinker_client.errors import UserError

F = nn.functional

MERGED_SNAPSHOTS = 2  # merged weights kept; each costs the memory of the model's linear layers
READ_ROWS = 256  # tokens of a prompt that are read at a time, which bounds the memory for attention's scores


@dataclass(frozen=True)
class SampleRequest:
    """One sample. Several samples of a prompt are several requests, of different seeds: the prompt is read once."""

    prompt: Sequence[int]
    max_tokens: int
    seed: int
    snapshot: Snapshot
    temperature: float = 1.0  # 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = -1  # below 1: all tokens
    stop_token_ids: Sequence[int] = ()
    stop_strings: Sequence[str] = ()
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class Reply:
    """What was sampled. A stop token, or the token that completed a stop string, is the last one.

    Log-probabilities are those of the snapshot's weights at temperature 1 over the whole vocabulary, whatever the
    request's temperature, top_p and top_k. `prompt_logprobs` has one entry for each token of the prompt, None for the
    first, which nothing precedes.
    """

    tokens: list[int]
    logprobs: list[float]
    stop_reason: Literal["stop", "length"]
    prompt_logprobs: list[float | None] | None


@dataclass(eq=False)
class _Running:
    """A request on its way: waiting, or with a slot and the tokens sampled so far."""

    request: SampleRequest
    prompt: Tokens
    future: "Future[Reply]"
    stop_token_ids: frozenset[int]
    slot: Slot | None = None
    output: Tensor | None = None  # [hidden] after the prompt's last token, until the first token is sampled from it
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None
    text: str = ""  # of the reply, as far as its bytes are whole; kept only if there are stop strings
    decoder: DecodeStream = field(default_factory=lambda: DecodeStream(skip_special_tokens=False))

    @property
    def room(self) -> int:
        """Tokens that the conversation may come to. The last one is sampled and never read."""
        return len(self.prompt) + self.request.max_tokens

    @property
    def next_draw(self) -> Draw:
        request = self.request
        return Draw(request.seed, len(self.tokens), request.temperature, request.top_p, request.top_k)


class Sampler:
    """Samples from snapshots of adapters on `base`, whose weights must not change.

    `tokenizer`, one of transformers', is needed for requests with stop strings. At most `slots` conversations are kept
    or running at once, in at most `cache_bytes` of keys and values.
    """

    def __init__(
        self, base: PreTrainedModel, tokenizer: Any | None = None, *, cache_bytes: int = 2 << 30, slots: int = 256
    ) -> None:
        self._base, self._tokenizer = base, tokenizer
        self._vocabulary: int = base.config.vocab_size
        self._context: int = base.config.max_position_embeddings
        self._models: OrderedDict[Snapshot, MergedModel] = OrderedDict()
        self._cache = KVCache(CacheShape.of(base.config), cache_bytes, slots)
        self._inbox: deque[_Running] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="sampler", daemon=True)
        self._thread.start()

    def submit(self, request: SampleRequest) -> "Future[Reply]":
        """Queue a request; callable from any thread. A request that cannot be served fails its future alone.

        That is with UserError if the request is at fault, for instance longer than the model's context.
        """
        future: Future[Reply] = Future()
        try:
            running = self._checked(request, future)
        except UserError as error:
            future.set_exception(error)
            return future
        with self._changed:
            if self._closed:
                future.set_exception(RuntimeError("the sampler is closed"))
            else:
                self._inbox.append(running)
                self._changed.notify()
        return future

    def close(self) -> None:
        """Stop sampling. Requests that have not ended fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _checked(self, request: SampleRequest, future: "Future[Reply]") -> _Running:
        prompt = np.asarray(request.prompt, dtype=np.int64)
        running = _Running(request, prompt, future, frozenset(request.stop_token_ids))
        if not len(prompt):
            raise UserError("the prompt is empty: sampling starts from at least one token")
        if prompt.min() < 0 or prompt.max() >= self._vocabulary:
            raise UserError(f"the prompt has tokens outside the model's vocabulary of {self._vocabulary}")
        if request.max_tokens < 1:
            raise UserError(f"max_tokens is {request.max_tokens}: a reply has at least one token")
        if not (request.temperature >= 0 and 0 < request.top_p <= 1):
            raise UserError("temperature must be 0 or more, and top_p above 0 and at most 1")
        if running.room > self._context:
            raise UserError(
                f"prompt and max_tokens are {len(prompt)} + {request.max_tokens} tokens, "
                f"the model's context is {self._context}: ask for fewer"
            )
        if self._cache.limit(running.room) < 1:
            raise UserError(f"the cache cannot hold {running.room} tokens: give the server a larger cache")
        if request.stop_strings and self._tokenizer is None:
            raise UserError("stop strings need the model's tokenizer, and its folder has none: give stop tokens")
        return running

    def _serve(self) -> None:
        waiting: deque[_Running] = deque()
        running: list[_Running] = []
        with torch.inference_mode():
            while True:
                with self._changed:
                    while not (self._closed or self._inbox or waiting or running):
                        self._changed.wait()
                    waiting.extend(self._inbox)
                    self._inbox.clear()
                    if self._closed:
                        break
                running += self._start(waiting, running)
                for snapshot, model in self._models.items():
                    if own := [run for run in running if run.request.snapshot is snapshot]:
                        with self._failures_end(own):
                            self._sample_token(model, own)
                running = [run for run in running if not run.future.done()]
        for run in (*running, *waiting):
            self._end(run, RuntimeError("the sampler was closed before the reply ended"))

    def _start(self, waiting: "deque[_Running]", running: Sequence[_Running]) -> list[_Running]:
        """Take requests from `waiting`, first come first served, as long as there is room, and read their prompts."""
        started: list[_Running] = []
        while waiting:
            run = waiting[0]
            with self._failures_end([run]):
                model = self._model(run.request.snapshot, {other.request.snapshot for other in (*running, *started)})
                if model is not None:
                    reread = run.request.prompt_logprobs
                    run.slot = self._cache.acquire(run.prompt, run.room, run.request.snapshot, reread=reread)
                if model is None or run.slot is None:
                    break
                if run.future.set_running_or_notify_cancel():
                    self._read(model, run, run.slot)
                    started.append(run)
                else:
                    self._cache.release(run.slot)
            waiting.popleft()
        return started

    def _model(self, snapshot: Snapshot, running: Set[Snapshot]) -> MergedModel | None:
        """A snapshot's merged weights; None while those of running requests take all the places."""
        if snapshot not in self._models:
            idle = [other for other in self._models if other not in running]
            if len(self._models) == MERGED_SNAPSHOTS:
                if not idle:
                    return None
                del self._models[idle[0]]
            self._models[snapshot] = MergedModel(self._base, snapshot)
        self._models.move_to_end(snapshot)
        return self._models[snapshot]

    def _read(self, model: MergedModel, run: _Running, slot: Slot) -> None:
        """Read what the slot does not hold of a prompt, and keep the output after its last token."""
        if run.request.prompt_logprobs:
            run.prompt_logprobs = [None]
        for start in range(slot.length, len(run.prompt), READ_ROWS):
            tokens = run.prompt[start : start + READ_ROWS]
            rows = round_up(len(tokens), ROWS)
            attend = self._cache.reading(slot, len(tokens), rows)
            padded = torch.from_numpy(np.resize(tokens, rows))
            hidden = model.hidden(padded, torch.arange(start, start + rows), attend)
            self._cache.append(slot, tokens)
            run.output = hidden[len(tokens) - 1]
            if run.prompt_logprobs is not None:
                following = torch.from_numpy(run.prompt[start + 1 : start + 1 + len(tokens)])
                logprobs = model.logits(hidden).log_softmax(dim=-1)[: len(following)]
                run.prompt_logprobs += logprobs.gather(1, following[:, None])[:, 0].tolist()

    def _sample_token(self, model: MergedModel, runs: Sequence[_Running]) -> None:
        """Sample the next token of requests of one snapshot: after the prompt if it has just been read."""
        read = [run for run in runs if run.output is not None]
        going_on = [run for run in runs if run.output is None]
        outputs = [run.output for run in read if run.output is not None]
        if going_on:
            outputs += self._decode(model, going_on)
        logits = model.logits(F.pad(torch.stack(outputs), (0, 0, 0, -len(outputs) % ROWS)))[: len(outputs)]
        tokens, logprobs = draw(logits, [run.next_draw for run in (*read, *going_on)])
        for run, token, logprob in zip((*read, *going_on), tokens, logprobs, strict=True):
            run.output = None
            with self._failures_end([run]):
                self._accept(run, token, logprob)

    def _decode(self, model: MergedModel, runs: Sequence[_Running]) -> list[Tensor]:
        """Read the last token of each reply, in a batch of its own, and return the outputs."""
        slots = [run.slot for run in runs if run.slot is not None]
        tokens = [run.tokens[-1] for run in runs]
        surplus = -len(runs) % ROWS  # filled with the first one again, which writes the same keys once more
        batch = [*slots, *slots[:1] * surplus]
        positions = torch.tensor([slot.length for slot in batch])
        attend = self._cache.decoding(batch)
        hidden = model.hidden(torch.tensor([*tokens, *tokens[:1] * surplus]), positions, attend)
        for slot, token in zip(slots, tokens, strict=True):
            self._cache.append(slot, [token])
        return list(hidden[: len(runs)].unbind())

    def _accept(self, run: _Running, token: int, logprob: float) -> None:
        """Add a sampled token to the reply, and end the request if it was the last one."""
        if not math.isfinite(logprob):
            raise FloatingPointError("the model's output is not finite: its weights have diverged")
        run.tokens.append(token)
        run.logprobs.append(logprob)
        if token in run.stop_token_ids or self._completes_stop_string(run, token):
            stop_reason: Literal["stop", "length"] = "stop"
        elif len(run.tokens) == run.request.max_tokens:
            stop_reason = "length"
        else:
            return
        self._end(run, Reply(run.tokens, run.logprobs, stop_reason, run.prompt_logprobs))

    def _completes_stop_string(self, run: _Running, token: int) -> bool:
        if not run.request.stop_strings or self._tokenizer is None:
            return False
        run.text += run.decoder.step(self._tokenizer.backend_tokenizer, token) or ""
        return any(stop in run.text for stop in run.request.stop_strings)

    @contextmanager
    def _failures_end(self, runs: Sequence[_Running]) -> Iterator[None]:
        """End `runs`, and nothing else, with what goes wrong inside."""
        try:
            yield
        except Exception as error:
            for run in runs:
                self._end(run, error)

    def _end(self, run: _Running, outcome: Reply | Exception) -> None:
        if run.slot is not None:
            self._cache.release(run.slot)
        if isinstance(outcome, Reply):
            run.future.set_result(outcome)
        elif not run.future.done():
            run.future.set_exception(outcome)
