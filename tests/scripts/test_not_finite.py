"""Weights, losses and gradients that are not finite: a run stops in one line, and what it has saved stays sound."""

import asyncio
import math
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from skyrl.tinker.proto_serialization import parse_forward_backward_request
from starlette.responses import JSONResponse, Response

from benchmarks.stand_in import StandIn
from sft_data.dataset import every_task
from sft_data.files import write_rows
from sft_data.procedure import ROUNDS
from tests import standing_in
from textcraft import load_tasks
from tinker_client.connection.models import TINY_MODEL
from tinker_client.run.jsonl import read_rows

REPOSITORY = Path(__file__).resolve().parents[2]


class Spoiling(StandIn):
    """A service whose weights, loss or gradient norm are not finite from some optimizer step on.

    As SkyRL's: an answer to a pass can hold NaN, a gradient norm that is none is null, and a reply from such weights is
    no answer at all. As our local engine: a pass whose loss is none is refused.
    """

    weights = loss = norm = refused = 99  # the optimizer step that spoils it, counted from 1

    async def forward_backward(self, body: bytes, request: dict[str, Any]) -> Response:
        with_gradients = not parse_forward_backward_request(body)[1]
        if with_gradients and len(self.adapters[request["model_id"]]) + 1 >= self.refused:
            return JSONResponse({"detail": "the loss is not finite: no weights were changed"}, status_code=400)
        return await super().forward_backward(body, request)

    def losses(self, inputs, model, forward_only):
        logprobs, loss = super().losses(inputs, model, forward_only)
        done = len(self.adapters[model])
        if done >= self.weights:
            logprobs = [[math.nan] * len(values) for values in logprobs]
        return logprobs, math.inf if not forward_only and done + 1 >= self.loss else loss

    async def optim_step(self, body: bytes, request: dict[str, Any]) -> Response:
        answer = await super().optim_step(body, request)
        spoilt = len(self.adapters[request["model_id"]]) >= self.norm
        return JSONResponse({"metrics": {"skyrl.ai/grad_norm": None}}) if spoilt else answer

    async def save_weights_for_sampler(self, body: bytes, request: dict[str, Any]) -> Response:
        if len(self.adapters[request["model_id"]]) >= self.weights:
            await asyncio.sleep(600)
        return await super().save_weights_for_sampler(body, request)


Script = Callable[..., tuple[int, str]]


@pytest.fixture
def script(monkeypatch, capsys) -> Script:
    """Runs a script in this process: its exit status, and its last line on stderr."""

    def run(path: str, *flags: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [path, *map(str, flags)])
        capsys.readouterr()
        try:
            runpy.run_path(str(REPOSITORY / path), run_name="__main__")
        except SystemExit as ended:
            return int(ended.code or 0), capsys.readouterr().err.rstrip("\n").rpartition("\n")[2]
        return 0, ""

    return run


@contextmanager
def spoiling(**steps: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standing_in, "StandIn", type("Service", (Spoiling,), steps))
        with standing_in.serving() as (service, url):
            yield service, ["--base-url", url, "--tokenizer", TINY_MODEL]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "demonstrations.jsonl"
    write_rows(path, every_task(load_tasks("train", "easy", [2])[:8], ROUNDS[2]))
    return path


GRPO = ["train_grpo.py", "--env", "tests.patience:PATIENCE", "--depths", 4, "--groups", 2, "--group-size", 3]
GRPO += ["--max-turns", 6, "--steps", 5, "--save-every", 1]


WHAT = {"weights": "the logprobs are", "norm": "the gradient norm is", "loss": "the loss is", "refused": "the loss is"}


@pytest.mark.parametrize("spoilt", WHAT)
@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_a_run_stops_at_its_first_step_that_is_not_finite_and_saves_none_of_it(method, spoilt, script, data, tmp_path):
    run = tmp_path / "run"
    sft = ["train_sft.py", "--data", data, "--batch-size", 2, "--epochs", 2, "--save-every", 1]
    with spoiling(**{spoilt: 3}) as (service, server):
        status, line = script(*(sft if method == "sft" else GRPO), "--run-dir", run, *server)
        assert status == 2
        assert f"step 3: {WHAT[spoilt]} not finite" in line
        *_, last = saved = read_rows(run / "checkpoints.jsonl")
        assert [row["step"] for row in saved] == [1, 2]
        assert sorted(service.states) == [row["state_path"] for row in saved]  # not one more
        assert f"a lower --lr (the last sound state is step 2, {last['state_path']})" in line
        assert line.startswith("error: ")


def test_weights_that_were_not_to_be_saved_yet_are_found_by_the_next_step(script: Script, data: Path, tmp_path: Path):
    flags: Sequence[object] = ["--data", data, "--batch-size", 2, "--run-dir", tmp_path / "run"]
    with spoiling(weights=2) as (service, server):
        status, line = script("train_sft.py", *flags, *server)
    assert (status, service.states) == (2, {})
    assert "step 3: the logprobs are not finite" in line
    assert "the last sound state is what the run started from" in line


def test_the_loss_on_what_is_held_out_counts_too(script: Script, data: Path, tmp_path: Path):
    flags: Sequence[object] = ["--data", data, "--batch-size", 8, "--held-out", 2, "--run-dir", tmp_path / "run"]
    with spoiling(weights=1) as (_, server):
        status, line = script("train_sft.py", *flags, *server)
    assert status == 2
    assert "step 1: the logprobs are not finite" in line


def test_a_spoilt_state_is_neither_played_nor_trained_on(script: Script, data: Path, tmp_path: Path):
    run = tmp_path / "run"
    with spoiling() as (service, server):
        assert script(*GRPO, "--run-dir", run, *server)[0] == 0
        type(service).weights = 1  # as if an earlier version had saved it so
        play = ["--difficulty", "easy", "--limit", 1, "--run-dir", tmp_path / "evaluation"]
        more = [*GRPO, "--run-dir", tmp_path / "more", "--init", run]
        for command in (["evaluate.py", *play, "--checkpoint", run], more):
            status, line = script(*command, *server)
            assert status == 2
            assert "the logprobs are not finite: the weights were spoilt in training, so take an earlier state" in line


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("flag", ["--lr", "--clip-low", "--clip-high", "--temperature", "--adam-eps", "--adam-beta1"])
def test_flags_that_are_not_finite_are_refused(flag: str, value: str, script: Script, tmp_path: Path):
    status, line = script("train_grpo.py", "--run-dir", tmp_path / "run", f"{flag}={value}")
    assert status == 2
    assert f"{flag} {value}: give a finite number" in line
    assert not (tmp_path / "run").exists()
