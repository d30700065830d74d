"""What a training step asks of the server: passes over a batch, the optimizer step, the new weights, the saved state.

SkyRL's JAX backend pads every sequence of a pass to the longest one, and makes one pass of all calls that wait. On two
cores with the tiny model a sequence of 1,024 tokens costs eight times one of 256, so there a batch goes in several
calls, each of datums that are padded to the same length, and each sent when the one before is answered. Gradients add
up on the server until the optimizer step, and the datums are scaled for the whole of it (datums.py). A GPU server packs
sequences by their tokens, and gets the batch in one call.
"""

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import tinker
from annotated_types import Ge, Gt, Le

from tinker_client.connection.alive import Request
from tinker_client.connection.backend import Backend
from tinker_client.errors import ServerError, UserError
from tinker_client.play.rollout import Policy
from tinker_client.run.flags import check_flags
from tinker_client.run.run_dir import RunDir, state_name
from tinker_client.train.datums import Batch, reported_loss
from tinker_client.train.metrics import GRADIENT_NORM

_log = logging.getLogger(__name__)

Pass = Callable[..., Request[tinker.ForwardBackwardOutput]]

# Of the pass that looks at the weights: the shortest length that SkyRL's JAX backend pads to.
PROBE_TOKENS = 32


class NotFiniteError(UserError):
    """Numbers that the trainer answered are NaN or infinite: the weights are spoilt, or would be by this step."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} not finite: the weights were spoilt in training, so take an earlier state")


@contextmanager
def stop_if_not_finite(run: RunDir, step: int) -> Iterator[None]:
    """Around what a step asks of the trainer: a NotFiniteError is raised with the step and the last sound state.

    Every state in checkpoints.jsonl is sound, since `commit` saves no other.
    """
    try:
        yield
    except NotFiniteError as error:
        rows = run.checkpoints()
        state = f"step {rows[-1]['step']}, {rows[-1]['state_path']}" if rows else "what the run started from"
        raise UserError(
            f"step {step}: {error.what} not finite, and the step is not saved: begin a new run with a lower --lr (the "
            f"last sound state is {state})"
        ) from error


@dataclass(frozen=True)
class Adam:
    """Adam's numbers beside the learning rate, as flags. By default those of Tinker's SDK.

    SkyRL's GPU backends take them from their own configuration, whatever a client sends (server/README.md).
    """

    adam_beta1: Annotated[float, Ge(0), Le(1)] = 0.9
    """Decay of Adam's mean of gradients."""
    adam_beta2: Annotated[float, Ge(0), Le(1)] = 0.95
    """Decay of Adam's mean of squared gradients."""
    adam_eps: Annotated[float, Gt(0)] = 1e-12
    """Added to the root of that mean."""

    def __post_init__(self) -> None:
        check_flags(self)

    def at(self, lr: float) -> tinker.AdamParams:
        """What an optimizer step with this learning rate is asked with. No weight decay, no clipping of gradients."""
        return tinker.AdamParams(
            learning_rate=lr,
            beta1=self.adam_beta1,
            beta2=self.adam_beta2,
            eps=self.adam_eps,
            weight_decay=0.0,
            grad_clip_norm=0.0,
        )


@contextmanager
def _naming_what_is_not_finite() -> Iterator[None]:
    """Around requests to the trainer: a ServerError that is about numbers is raised as a NotFiniteError."""
    try:
        yield
    except ServerError as error:
        # Our local engine says so in words, and has then changed no weights.
        if found := re.search(r"(the (?:loss|gradient|model's output) is) not finite", str(error)):
            raise NotFiniteError(found[1]) from error
        if GRADIENT_NORM in str(error):  # SkyRL writes one that is not finite as null, which the SDK does not read
            raise NotFiniteError("the gradient norm is") from error
        raise


@_naming_what_is_not_finite()
def update(
    backend: Backend, trainer: tinker.TrainingClient, batch: Batch, adam: tinker.AdamParams
) -> tuple[tinker.ForwardBackwardOutput, tinker.OptimStepResponse]:
    """One optimizer step on `batch`. The answers to its gradients, with the outputs in the batch's order, and to Adam.

    Raises ServerError if the server fails one of them, NotFiniteError if a logprob, the loss or the gradient is.
    """
    calls = _calls(batch, backend)
    outputs = [backend.result(_send(trainer.forward_backward, batch, call), "the gradients") for call in calls[:-1]]
    # Submitted back to back: the server goes from one to the other without waiting for us.
    last = _send(trainer.forward_backward, batch, calls[-1])
    optim_step = trainer.optim_step(adam)
    outputs.append(backend.result(last, "the gradients"))
    output = _in_order(calls, outputs)
    _check_output(batch, output)
    optimizer = backend.result(optim_step, "the optimizer step")
    if not math.isfinite((optimizer.metrics or {}).get(GRADIENT_NORM, 0.0)):
        raise NotFiniteError("the gradient norm is")
    return output, optimizer


@_naming_what_is_not_finite()
def forward(backend: Backend, trainer: tinker.TrainingClient, batch: Batch) -> tinker.ForwardBackwardOutput:
    """The losses of `batch` without gradients, in its order.

    Raises ServerError if the server fails, NotFiniteError if a logprob or the loss is.
    """
    calls = _calls(batch, backend)
    answers = [backend.result(_send(trainer.forward, batch, call), "the losses") for call in calls]
    output = _in_order(calls, answers)
    _check_output(batch, output)
    return output


def check_weights(backend: Backend, trainer: tinker.TrainingClient) -> None:
    """Raises NotFiniteError if the adapter's weights give logprobs that are: a pass over a few tokens tells.

    An optimizer step answers before anything has been computed with its weights. Sampling from spoilt ones does not
    tell: SkyRL's API cannot write such logprobs down, and the SDK asks for them for ever.
    """
    tokens = np.full(PROBE_TOKENS, backend.stop_token_ids[0], np.int64)
    weights = np.ones(PROBE_TOKENS, np.float32)
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens.tolist()),
        loss_fn_inputs={"target_tokens": tokens, "weights": weights},
    )
    forward(backend, trainer, Batch([datum], "cross_entropy", None, [weights > 0]))


def sync_policy(backend: Backend, trainer: tinker.TrainingClient, version: int) -> Policy:
    """The policy as trained up to now; no older one may be sampled from afterwards. Raises NotFiniteError.

    The JAX backend has one copy of an adapter, for training and sampling, and loads a save into it when that save is
    first sampled from. One token is sampled at once, so that this cannot happen later, on top of further training.
    """
    check_weights(backend, trainer)
    client = backend.sampling_client(trainer)
    prompt = tinker.ModelInput.from_ints(backend.stop_token_ids[:1])
    first = client.sample(prompt, num_samples=1, sampling_params=tinker.SamplingParams(max_tokens=1))
    backend.result(first, "a first token of the new weights")
    return Policy(client, version)


def commit(run: RunDir, backend: Backend, trainer: tinker.TrainingClient, step: int, *, keep: int, **more: Any) -> None:
    """Save the state after `step`; the row in checkpoints.jsonl is what makes the steps up to it final.

    A run that is killed before that row is written plays on from the row before.
    keep: how many of the run's states stay on the server, the newest ones. more: goes into the row.
    Raises UserError in place of saving weights that are not finite.
    """
    with stop_if_not_finite(run, step):
        check_weights(backend, trainer)
    run.log_checkpoint(step, backend.save_state(trainer, state_name(step)), **more)
    rows = run.checkpoints()
    left = []
    for row in rows[:-keep]:
        try:
            backend.delete_state(row["state_path"])
        except ServerError as error:
            left.append(row)
            _log.warning("the server keeps the old state %s (%s): delete it there", row["state_path"], error)
    if len(rows) > keep:
        run.replace_checkpoints(left + rows[-keep:])


def padded_length(tokens: int) -> int:
    """What SkyRL's JAX backend pads a sequence to: the next power of two or one and a half of one, 32 or more.

    As `round_up_seq_len` in skyrl/tx/utils/models.py. Each length is compiled once.
    """
    power = max(32, 1 << (tokens - 1).bit_length())
    return power * 3 // 4 if power > 32 and tokens <= power * 3 // 4 else power


def _check_output(batch: Batch, output: tinker.ForwardBackwardOutput) -> None:
    if not all(np.isfinite(logprobs).all() for logprobs in batch.action_logprobs(output)):
        raise NotFiniteError("the logprobs are")
    if not math.isfinite(reported_loss(output) or 0.0):
        raise NotFiniteError("the loss is")


def _calls(batch: Batch, backend: Backend) -> list[list[int]]:
    """Which datums go in which call."""
    if backend.kind != "skyrl-jax":
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
