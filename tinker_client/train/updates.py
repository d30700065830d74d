"""An optimizer step on the server, and the passes over a batch that it takes there.

SkyRL's JAX backend pads every sequence of a pass to the longest one, and makes one pass of all calls that wait. On two
cores with the tiny model a sequence of 1,024 tokens costs eight times one of 256, so there a batch goes in several
calls, each of datums that are padded to the same length, and each sent when the one before is answered. Gradients add
up on the server until the optimizer step, and the datums are scaled for the whole of it (datums.py). A GPU server packs
sequences by their tokens, and gets the batch in one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import tinker

from tinker_client.connection.backend import Backend
from tinker_client.connection.waiting import Request
from tinker_client.train.datums import Batch

Pass = Callable[..., Request[tinker.ForwardBackwardOutput]]


def update(
    backend: Backend, trainer: tinker.TrainingClient, batch: Batch, lr: float
) -> tuple[tinker.ForwardBackwardOutput, tinker.OptimStepResponse]:
    """One optimizer step on `batch`. The answers to its gradients, with the outputs in the batch's order, and to Adam.

    Raises ServerError if the server fails one of them.
    """
    calls = _calls(batch, backend)
    outputs = [backend.result(_send(trainer.forward_backward, batch, call), "the gradients") for call in calls[:-1]]
    # Submitted back to back: the server goes from one to the other without waiting for us.
    last = _send(trainer.forward_backward, batch, calls[-1])
    optim_step = trainer.optim_step(tinker.AdamParams(learning_rate=lr))
    outputs.append(backend.result(last, "the gradients"))
    return _in_order(calls, outputs), backend.result(optim_step, "the optimizer step")


def forward(backend: Backend, trainer: tinker.TrainingClient, batch: Batch) -> tinker.ForwardBackwardOutput:
    """The losses of `batch` without gradients, in its order. Raises ServerError if the server fails."""
    calls = _calls(batch, backend)
    return _in_order(calls, [backend.result(_send(trainer.forward, batch, call), "the losses") for call in calls])


def padded_length(tokens: int) -> int:
    """What SkyRL's JAX backend pads a sequence to: the next power of two or one and a half of one, 32 or more.

    As `round_up_seq_len` in skyrl/tx/utils/models.py. Each length is compiled once.
    """
    power = max(32, 1 << (tokens - 1).bit_length())
    return power * 3 // 4 if power > 32 and tokens <= power * 3 // 4 else power


def _calls(batch: Batch, backend: Backend) -> list[list[int]]:
    """Which datums go in which call."""
    if not backend.is_jax:
        return [list(range(len(batch.datums)))]
    calls: dict[int, list[int]] = {}
    for i, datum in enumerate(batch.datums):
        calls.setdefault(padded_length(datum.model_input.length), []).append(i)
    return [calls[length] for length in sorted(calls)]


def _send(send: Pass, batch: Batch, call: Sequence[int]) -> Request[tinker.ForwardBackwardOutput]:
    return send([batch.datums[i] for i in call], batch.loss_fn, batch.loss_fn_config)


def _in_order(
    calls: Sequence[Sequence[int]], outputs: Sequence[tinker.ForwardBackwardOutput]
) -> tinker.ForwardBackwardOutput:
    """The answers to several calls as if they were one. Only the JAX backend gets several, and it has no metrics."""
    by_index = {
        i: output
        for call, answer in zip(calls, outputs, strict=True)
        for i, output in zip(call, answer.loss_fn_outputs, strict=True)
    }
    return replace(outputs[0], loss_fn_outputs=[by_index[i] for i in sorted(by_index)])
