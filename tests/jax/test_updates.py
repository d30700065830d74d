"""An optimizer step in several calls, on the real server."""

from types import SimpleNamespace

import numpy as np
import pytest
import tinker

from tests.conftest import RANK
from tests.train.test_datums import conversation
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.train.datums import REDUCTION, supervised_batch
from tinker_client.train.updates import forward, padded_length, update

ADAM = tinker.AdamParams(learning_rate=1e-2)
REPLIES = [[20], [40, 50], [10], [30, 12], [60, 80]]  # of sequences of 25, 98, 15, 50 and 148 tokens


@pytest.fixture
def batch(backend: Backend):
    rng = np.random.default_rng(0)
    return supervised_batch([conversation(rng, replies) for replies in REPLIES], REDUCTION[backend.kind])


def test_padded_lengths_are_those_of_skyrl():
    from skyrl.tx.utils.models import round_up_seq_len  # noqa: PLC0415 - of the extra jax

    assert [padded_length(n) for n in range(1, 5000)] == [round_up_seq_len(n) for n in range(1, 5000)]


def test_the_answers_of_several_calls_are_in_the_order_of_the_batch(backend: Backend, adapter, batch):
    alone = [
        adapter.forward([datum], batch.loss_fn, batch.loss_fn_config).result(300).loss_fn_outputs[0]["logprobs"].data
        for datum in batch.datums
    ]
    together = [output["logprobs"].data for output in forward(backend, adapter, batch).loss_fn_outputs]
    assert [len(logprobs) for logprobs in together] == [len(logprobs) for logprobs in alone]
    for got, want in zip(together, alone, strict=True):
        assert np.allclose(got, want, atol=1e-4)


def test_several_calls_make_the_step_that_one_call_makes(backend: Backend, batch):
    calls: list[list[int]] = []

    def two_steps(step) -> tuple[list[float], list[np.ndarray]]:
        """The gradient norms, and afterwards the logprobs."""
        adapter = backend.new_training_client(rank=RANK, seed=0)
        try:
            norms = [step(adapter).metrics["skyrl.ai/grad_norm"] for _ in range(2)]
            return norms, batch.action_logprobs(forward(backend, adapter, batch))
        finally:
            backend.release(adapter)

    def several(adapter):
        def forward_backward(datums: list[tinker.Datum], *rest):
            calls.append([padded_length(datum.model_input.length) for datum in datums])
            return adapter.forward_backward(datums, *rest)

        spy = SimpleNamespace(forward_backward=forward_backward, optim_step=adapter.optim_step)
        return update(backend, spy, batch, ADAM)[1]

    def one(adapter):
        adapter.forward_backward(batch.datums, batch.loss_fn, batch.loss_fn_config)
        return adapter.optim_step(ADAM).result(300)

    got, want = two_steps(several), two_steps(one)
    assert calls == [[32, 32], [48], [96], [192]] * 2
    assert got[0] == pytest.approx(want[0], rel=1e-3)
    for logprobs, same in zip(got[1], want[1], strict=True):
        assert np.allclose(logprobs, same, atol=1e-3)


def test_gradients_of_a_script_that_died_before_its_step_are_in_no_other_step(backend: Backend, batch, tmp_path):
    config = BackendConfig(base_url=backend.server["url"], engine="jax")

    def first_gradient_norm() -> float:
        with connect(config, tmp_path) as remote:
            output = update(remote, remote.adapter_to_train(RANK, seed=0), batch, ADAM)[1]
        return output.metrics["skyrl.ai/grad_norm"]

    clean = first_gradient_norm()
    with connect(config, tmp_path) as remote:
        dying = remote.new_training_client(rank=RANK, seed=0)
        dying.forward_backward(batch.datums[:2], batch.loss_fn, batch.loss_fn_config).result(300)
    assert first_gradient_norm() == pytest.approx(clean, rel=1e-4)
