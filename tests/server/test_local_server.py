"""The local engine as a client sees it: the real SDK, SkyRL's API and engine in their processes, the tiny model."""

import io
import json
import math
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import tinker
from tinker import types

from tests.server.local_server import TINY_MODEL, LocalEngine

VOCABULARY = 640
RANK = 8
ADAM = types.AdamParams(learning_rate=3e-3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    with LocalEngine(tmp_path_factory.mktemp("local")) as running:
        yield running


@pytest.fixture(scope="module")
def service(server: LocalEngine) -> tinker.ServiceClient:
    return server.client()


@pytest.fixture
def trained(service: tinker.ServiceClient) -> tinker.TrainingClient:
    """An adapter that has taken two steps."""
    client = new_adapter(service)
    for _ in range(2):
        update(client)
    return client


def new_adapter(service: tinker.ServiceClient, seed: int = 0) -> tinker.TrainingClient:
    return service.create_lora_training_client(base_model=str(TINY_MODEL), rank=RANK, seed=seed)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def datum(sequence: Sequence[int], **inputs: Sequence[float]) -> tinker.Datum:
    arrays = {name: np.array(values, np.float32) for name, values in inputs.items()}
    return tinker.Datum(
        model_input=types.ModelInput.from_ints(list(sequence[:-1])),
        loss_fn_inputs={"target_tokens": np.array(sequence[1:]), **arrays},
    )


def supervised(seed: int = 0) -> list[tinker.Datum]:
    return [datum(tokens(n, seed + n), weights=[0.01] * (n - 1)) for n in (20, 60, 33)]


def update(client: tinker.TrainingClient, seed: int = 0) -> float:
    """One step of supervised training; its gradient norm."""
    passed = client.forward_backward(supervised(seed), "cross_entropy")
    stepped = client.optim_step(ADAM)
    passed.result()
    return stepped.result().metrics["skyrl.ai/grad_norm"]


def logprobs(client: tinker.TrainingClient, sequence: Sequence[int]) -> np.ndarray:
    """The trainer's, of all tokens but the first."""
    output = client.forward([datum(sequence, weights=[1.0] * (len(sequence) - 1))], "cross_entropy").result()
    return output.loss_fn_outputs[0]["logprobs"].to_numpy()


def sampled_logprobs(client: tinker.SamplingClient, sequence: Sequence[int]) -> np.ndarray:
    """The sampler's, of all tokens but the first."""
    found = client.compute_logprobs(types.ModelInput.from_ints(list(sequence))).result()
    assert found[0] is None
    return np.array(found[1:])


def sample(client: tinker.SamplingClient, prompt: Sequence[int], **params: object) -> types.SampledSequence:
    settings = types.SamplingParams(**({"max_tokens": 8, "seed": 1} | params))
    (sequence,) = client.sample(types.ModelInput.from_ints(list(prompt)), 1, settings).result().sequences
    return sequence


def test_answers_have_the_form_of_skyrls_gpu_backends(service):
    client = new_adapter(service)
    data = supervised()
    output = client.forward_backward(data, "cross_entropy").result()
    found = [result["logprobs"].to_numpy() for result in output.loss_fn_outputs]
    total = -0.01 * sum(array.sum() for array in found)
    assert output.metrics == {"total_loss:sum": pytest.approx(total, rel=1e-5)}
    for result, array in zip(output.loss_fn_outputs, found, strict=True):
        assert result["elementwise_loss"].to_numpy() == pytest.approx(-0.01 * array, rel=1e-5)
    metrics = client.optim_step(ADAM).result().metrics
    assert metrics["skyrl.ai/learning_rate"] == ADAM.learning_rate
    assert metrics["skyrl.ai/grad_norm"] > 0

    sequence = tokens(40)
    current = logprobs(client, sequence)
    shift = np.linspace(-0.5, 0.5, len(current))
    sent = datum(sequence, logprobs=current - shift, advantages=[2.0] * len(current))
    output = client.forward_backward([sent], "ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}).result()
    assert output.loss_fn_outputs[0].keys() == {"logprobs"}
    ratio = np.exp(shift)
    assert output.metrics["pg_loss:sum"] == pytest.approx(-2 * np.minimum(ratio, ratio.clip(0.9, 1.1)).sum(), rel=1e-3)
    assert output.metrics["total_loss:sum"] == output.metrics["pg_loss:sum"]
    assert output.metrics["clip_ratio:mean"] == pytest.approx((ratio > 1.1).mean())
    assert output.metrics["rollout_train_logprobs_abs_diff_max:max"] == pytest.approx(0.5, abs=1e-3)
    output = client.forward_backward([sent], "importance_sampling").result()
    assert output.metrics["importance_ratio:mean"] == pytest.approx(ratio.mean(), rel=1e-3)


def test_losses_are_summed_over_tokens_and_calls(service):
    once, twice = new_adapter(service), new_adapter(service)
    data = supervised()
    for client, calls in ((once, 1), (twice, 2)):
        for _ in range(calls):
            client.forward_backward(data, "cross_entropy").result()
    norms = [client.optim_step(ADAM).result().metrics["skyrl.ai/grad_norm"] for client in (once, twice)]
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-5)


def test_two_runs_are_equal_to_the_bit(service):
    norms = []
    found = []
    for _ in range(2):
        client = new_adapter(service, seed=5)
        norms.append([update(client, seed) for seed in range(3)])
        found.append(logprobs(client, tokens(50)))
    assert norms[0] == norms[1]
    assert np.array_equal(*found)


def test_the_sampler_has_the_trainers_logprobs(service):
    client = new_adapter(service)
    for _ in range(2):  # of a fresh adapter, then of one that has learnt
        sampler = client.save_weights_and_get_sampling_client()
        prompt = tokens(30)
        reply = sample(sampler, prompt, max_tokens=20)
        whole = prompt + reply.tokens
        trainer = logprobs(client, whole)
        assert trainer[-len(reply.tokens) :] == pytest.approx(reply.logprobs, abs=1e-4)
        assert sampled_logprobs(sampler, whole) == pytest.approx(trainer, abs=1e-4)
        update(client)


def test_fifty_turns_of_a_conversation_have_the_trainers_logprobs(trained):
    sampler = trained.save_weights_and_get_sampling_client()
    conversation, found = tokens(40), {}
    for turn in range(50):
        reply = sample(sampler, conversation, max_tokens=6, seed=turn)
        found |= dict(enumerate(reply.logprobs, start=len(conversation)))
        conversation += reply.tokens + tokens(7, seed=turn)
    trainer = logprobs(trained, conversation)
    assert [trainer[at - 1] for at in found] == pytest.approx(list(found.values()), abs=1e-4)


def test_each_sampling_client_has_the_weights_it_was_made_from(service, trained):
    sequence = tokens(40)
    before = trained.save_weights_and_get_sampling_client()
    want_before = logprobs(trained, sequence)
    update(trained)
    after = trained.save_weights_and_get_sampling_client()
    want_after = logprobs(trained, sequence)
    update(trained)
    assert np.abs(want_before - want_after).max() > 0.01
    base = service.create_sampling_client(base_model=str(TINY_MODEL))
    want_base = logprobs(new_adapter(service), sequence)
    for _ in range(2):
        for client, want in ((before, want_before), (after, want_after), (base, want_base)):
            assert sampled_logprobs(client, sequence) == pytest.approx(want, abs=1e-4)
            reply = sample(client, sequence[:20], max_tokens=4)
            again = sampled_logprobs(client, sequence[:20] + reply.tokens)
            assert again[-len(reply.tokens) :] == pytest.approx(reply.logprobs, abs=1e-4)


def test_only_the_last_snapshots_are_kept(trained):
    clients = [trained.save_weights_and_get_sampling_client() for _ in range(5)]
    sample(clients[1], tokens(5))
    with pytest.raises(Exception, match=r"not kept any more \(the last 4 are\): save them again"):
        sample(clients[0], tokens(5))


def test_sampling_parameters_reach_the_sampler(service):
    base = service.create_sampling_client(base_model=str(TINY_MODEL))
    prompt = tokens(10)
    greedy = sample(base, prompt, temperature=0.0)
    assert sample(base, prompt, top_k=1, seed=9).tokens == greedy.tokens
    assert sample(base, prompt, top_p=1e-6, seed=9).tokens == greedy.tokens
    assert greedy.stop_reason == "length"
    stopped = sample(base, prompt, temperature=0.0, stop=[greedy.tokens[2]])
    assert stopped.stop_reason == "stop"
    assert stopped.tokens == greedy.tokens[: greedy.tokens.index(greedy.tokens[2]) + 1]

    settings = types.SamplingParams(max_tokens=8, seed=3)
    answer = base.sample(types.ModelInput.from_ints(prompt), 3, settings).result()
    assert len({tuple(sequence.tokens) for sequence in answer.sequences}) == 3
    assert answer.sequences[1].tokens == sample(base, prompt, seed=4).tokens
    with pytest.raises(Exception, match="vocabulary"):
        sample(base, [VOCABULARY])


def test_training_goes_on_from_a_state(service, trained):
    saved = trained.save_state("middle").result().path
    with_optimizer = service.create_training_client_from_state_with_optimizer(saved)
    without = service.create_training_client_from_state(saved)
    sequence = tokens(40)
    start = logprobs(trained, sequence)
    for client in (with_optimizer, without):
        assert np.array_equal(logprobs(client, sequence), start)
    norms = [update(client) for client in (trained, with_optimizer, without)]
    assert norms == [norms[0]] * 3
    assert np.array_equal(logprobs(with_optimizer, sequence), logprobs(trained, sequence))
    assert not np.array_equal(logprobs(without, sequence), logprobs(trained, sequence))
    assert update(with_optimizer) == update(trained)


def test_a_saved_adapter_can_be_downloaded(server, service, trained):
    path = trained.save_weights_for_sampler("final").result().path
    run, _, name = path.removeprefix("tinker://").partition("/")
    url = service.create_rest_client().get_checkpoint_archive_url(run, name).result().url
    with urllib.request.urlopen(url) as response:
        archive = io.BytesIO(response.read())
    with tarfile.open(fileobj=archive) as tar:
        assert set(tar.getnames()) == {"adapter_model.safetensors", "adapter_config.json"}
        config = json.load(tar.extractfile("adapter_config.json"))
    assert (config["r"], config["lora_alpha"]) == (RANK, 32.0)
    assert config["base_model_name_or_path"] == str(TINY_MODEL)
    sampler = service.create_sampling_client(model_path=path)
    assert sampled_logprobs(sampler, tokens(20)) == pytest.approx(logprobs(trained, tokens(20)), abs=1e-4)


def test_a_loss_that_is_not_finite_is_an_error_and_changes_nothing(trained):
    sequence = tokens(20)
    before = logprobs(trained, sequence)
    bad = datum(sequence, logprobs=[-1e30] * 19, advantages=[1.0] * 19)
    trained.forward_backward(supervised(), "cross_entropy").result()
    passed = trained.forward_backward([bad], "importance_sampling")
    stepped = trained.optim_step(ADAM)
    with pytest.raises(Exception, match="not finite"):
        passed.result()
    with pytest.raises(Exception, match="step was not taken"):
        stepped.result()
    assert np.array_equal(logprobs(trained, sequence), before)
    assert math.isfinite(update(trained))


def test_a_state_that_does_not_fit_is_refused_by_name(server, service, trained):
    path = trained.save_state("small").result().path
    wider = service.create_lora_training_client(base_model=str(TINY_MODEL), rank=2 * RANK)
    with pytest.raises(Exception, match=r"small.tar.gz has LoRA rank 8"):
        wider.load_state(path).result()
    run = path.removeprefix("tinker://").partition("/")[0]
    archive: Path = server.folder / "checkpoints" / run / "small.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(Exception, match=r"small.tar.gz is damaged"):
        service.create_training_client_from_state(path)


def test_a_killed_servers_states_are_loaded_by_the_next(server, service, trained):
    """The last test of this module: the clients of the others are of a server that is gone."""
    saved = trained.save_state("survives").result().path
    sequence = tokens(40)
    before = logprobs(trained, sequence)
    norm = update(trained)
    after = logprobs(trained, sequence)
    (engine,) = psutil.Process(server.process.pid).children()
    server.kill()
    while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:  # it does not outlive the API
        time.sleep(0.1)
    server.start()
    client = server.client().create_training_client_from_state_with_optimizer(saved)
    assert np.array_equal(logprobs(client, sequence), before)
    assert update(client) == norm
    assert np.array_equal(logprobs(client, sequence), after)
