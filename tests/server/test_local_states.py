"""States and sampler weights on disk: what comes back, what PEFT loads, and what is refused by name."""

import gzip
import os
import tarfile
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from server.local import states
from server.local.losses import Loss
from server.local.model import load_base
from server.local.states import AdapterState, BaseModel
from server.local.trainer import Adam, Trainer
from tests.server.random_models import CONFIGS, save_random
from tests.server.test_local_trainer import moved, some_data
from tinker_client.errors import UserError

ADAM = Adam(learning_rate=0.05, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0)
ALPHA = 32.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(CONFIGS["qwen3"], tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def base(folder: Path) -> BaseModel:
    return BaseModel.of("some/model", load_base(folder))


@pytest.fixture
def trainer(folder: Path) -> Trainer:
    """One with an adapter `a` that has taken a step."""
    trainer = Trainer(load_base(folder), 64)
    moved(trainer, "a", rank=4)
    update(trainer, "a")
    return trainer


def update(trainer: Trainer, name: str) -> None:
    trainer.accumulate(name, some_data(trainer, name), Loss("cross_entropy"))
    trainer.step(name, ADAM)


def state_of(trainer: Trainer, name: str) -> AdapterState:
    return AdapterState(*trainer.lora(name), trainer.weights(name), trainer.optimizer_state(name))


@pytest.fixture
def saved(tmp_path: Path, trainer: Trainer, base: BaseModel) -> Path:
    path = tmp_path / "model_1" / "step-10.tar.gz"
    states.write_training_state(path, state_of(trainer, "a"), base)
    return path


def test_training_goes_on_from_a_state_bit_for_bit(saved, trainer, base, folder):
    state = states.read_training_state(saved, base, rank=4, alpha=ALPHA)
    other = Trainer(load_base(folder), 64)
    other.create("b", 4, ALPHA, seed=9)
    other.load("b", state.weights, state.optimizer)
    for _ in range(2):
        update(trainer, "a")
        update(other, "b")
    assert all(torch.equal(t, other.weights("b")[path]) for path, t in trainer.weights("a").items())

    anew = Trainer(load_base(folder), 64)
    anew.create("c", 4, ALPHA, seed=9)
    anew.load("c", state.weights, None)
    assert anew.optimizer_state("c") == {}
    assert all(torch.equal(t, anew.weights("c")[path]) for path, t in state.weights.items())


def test_equal_states_are_equal_files(saved, trainer, base, tmp_path):
    again = tmp_path / "again.tar.gz"
    states.write_training_state(again, state_of(trainer, "a"), base)
    assert again.read_bytes() == saved.read_bytes()


def test_peft_loads_the_weights_for_samplers(trainer, base, folder, tmp_path):
    archive, adapter = tmp_path / "sampler.tar.gz", tmp_path / "adapter"
    states.write_sampler_weights(archive, state_of(trainer, "a"), base)
    with tarfile.open(archive) as tar:
        tar.extractall(adapter, filter="data")
    data = some_data(trainer, "a")[1]
    model = PeftModel.from_pretrained(load_base(folder), str(adapter)).eval()
    assert model.peft_config["default"].base_model_name_or_path == "some/model"
    with torch.no_grad():
        logits = model(torch.tensor([list(data.inputs)])).logits[0]
    want = logits.log_softmax(-1)[range(len(data.targets)), list(data.targets)]
    assert torch.allclose(trainer.logprobs("a", [data])[0], want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("part", [0, 5, 1000, 0.5, 0.99, -1])
def test_a_truncated_state_is_refused(saved, base, part):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content)) if isinstance(part, float) else part])
    with pytest.raises(UserError, match=r"state model_1/step-10.tar.gz is damaged .*: load another one"):
        states.read_training_state(saved, base, 4, ALPHA)


def test_a_state_with_a_flipped_bit_is_refused(saved, base):
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    saved.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        states.read_training_state(saved, base, 4, ALPHA)


def test_an_archive_of_something_else_is_refused(saved, base):
    saved.write_bytes(gzip.compress(b"no archive"))
    with pytest.raises(UserError, match="damaged"):
        states.read_training_state(saved, base, 4, ALPHA)
    states.write_marker(saved)
    with pytest.raises(UserError, match="damaged"):
        states.read_training_state(saved, base, 4, ALPHA)


def test_a_state_that_does_not_fit_is_refused(saved, base):
    with pytest.raises(UserError, match=r"model_1/step-10.tar.gz has LoRA rank 4 and alpha 32.0, the model rank 8"):
        states.read_training_state(saved, base, 8, ALPHA)
    other = BaseModel("another/model", "0" * 64)
    with pytest.raises(UserError, match="another base model: start the server with some/model"):
        states.read_training_state(saved, other, 4, ALPHA)
    with pytest.raises(UserError, match=r"there is no state model_1/step-11.tar.gz"):
        states.read_training_state(saved.with_name("step-11.tar.gz"), base, 4, ALPHA)


def test_models_of_the_same_shapes_are_told_apart(folder, base):
    model = load_base(folder)
    assert BaseModel.of("elsewhere", model).fingerprint == base.fingerprint
    model.model.layers[1].mlp.up_proj.weight[0, 3] += 1.0
    assert BaseModel.of("elsewhere", model).fingerprint != base.fingerprint


def test_a_write_that_is_interrupted_leaves_what_was_there(saved, trainer, base, monkeypatch):
    def killed(_: int) -> None:
        raise KeyboardInterrupt

    before = saved.read_bytes()
    update(trainer, "a")
    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        states.write_training_state(saved, state_of(trainer, "a"), base)
    with pytest.raises(KeyboardInterrupt):
        states.write_training_state(saved.with_name("new.tar.gz"), state_of(trainer, "a"), base)
    assert saved.read_bytes() == before
    assert not saved.with_name("new.tar.gz").exists()
    monkeypatch.undo()
    states.write_training_state(saved, state_of(trainer, "a"), base)
    assert saved.read_bytes() != before
