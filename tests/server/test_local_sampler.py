"""The local engine's sampler: what a request gets, whatever else is asked at the same time."""

import random
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoTokenizer, PreTrainedModel

from server.local.model import Snapshot, load_base
from server.local.sampler import Reply, Sampler, SampleRequest
from tests.server.random_models import token_logprobs, with_adapter
from tinker_client.errors import UserError

TINY = Path("server/tiny_model")
BASE = Snapshot({}, scaling=1.0)
SHARED = list(range(100, 180))  # what many prompts begin with


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return load_base(TINY)


@pytest.fixture(scope="module")
def adapted() -> list[tuple[PeftModel, Snapshot]]:
    return [with_adapter(TINY, seed) for seed in (1, 2, 3)]


@pytest.fixture
def sampler(base: PreTrainedModel) -> Iterator[Sampler]:
    sampler = Sampler(base, AutoTokenizer.from_pretrained(TINY))
    yield sampler
    sampler.close()


def ask(sampler: Sampler, *requests: SampleRequest) -> list[Reply]:
    futures = [sampler.submit(request) for request in requests]
    return [future.result() for future in futures]


def assert_logprobs(model: PreTrainedModel | PeftModel, prompt: list[int], reply: Reply) -> None:
    expected = token_logprobs(model, prompt + reply.tokens)[len(prompt) - 1 :]
    torch.testing.assert_close(torch.tensor(reply.logprobs), expected, atol=1e-4, rtol=0)


def mixed_requests(snapshots: list[Snapshot], number: int) -> list[SampleRequest]:
    """Requests of all kinds: some prompts begin alike, some are long enough that their keys need another block."""
    rng = random.Random(5)
    requests = []
    for seed in range(number):
        length = rng.choice([1, 7, 30, 30, 60, 90, 400])
        prompt = [rng.randrange(3, 640) for _ in range(length)]
        requests.append(
            SampleRequest(
                prompt if rng.random() < 0.5 else SHARED + prompt,
                max_tokens=rng.choice([1, 3, 20]),
                seed=seed,
                snapshot=rng.choice(snapshots),
                temperature=rng.choice([1.0, 1.0, 0.7, 1.5, 0.0]),
                top_p=rng.choice([1.0, 1.0, 0.9]),
                top_k=rng.choice([-1, -1, 20]),
                stop_token_ids=rng.choice([(), (2,)]),
            )
        )
    return requests


def test_the_same_request_gives_the_same_bits_in_any_company(base: PreTrainedModel, sampler: Sampler) -> None:
    requests = mixed_requests([BASE], 240)
    together = ask(sampler, *requests)
    assert len({tuple(reply.tokens) for reply in together}) > 150
    order = random.Random(1).sample(range(len(requests)), len(requests))
    again = ask(sampler, *(requests[i] for i in order))  # with another company, and prompts that are in the cache
    assert [again[order.index(i)] for i in range(len(requests))] == together
    small = Sampler(base, cache_bytes=8 << 20, slots=3)
    alone = [ask(small, request)[0] for request in requests[:40]]
    small.close()
    assert alone == together[:40]


def test_a_cached_conversation_gives_the_bits_of_one_read_at_once(base: PreTrainedModel, sampler: Sampler) -> None:
    tokens, rng = SHARED, random.Random(2)
    for turn in range(12):
        request = SampleRequest(tokens, 20, turn, BASE)
        reply = ask(sampler, request)[0]
        fresh = Sampler(base)
        assert ask(fresh, request)[0] == reply
        fresh.close()
        tokens = tokens + reply.tokens + [rng.randrange(3, 640) for _ in range(17)]


def test_logprobs_are_the_models_after_50_turns_of_cached_context(base: PreTrainedModel, sampler: Sampler) -> None:
    tokens, rng, replies = SHARED, random.Random(3), []
    for turn in range(50):
        reply = ask(sampler, SampleRequest(tokens, 8, turn, BASE, temperature=1.3))[0]
        replies.append((len(tokens), reply))
        tokens = tokens + reply.tokens + [rng.randrange(3, 640) for _ in range(8)]
    expected = token_logprobs(base, tokens)
    for start, reply in replies:
        own = expected[start - 1 : start - 1 + len(reply.tokens)]
        torch.testing.assert_close(torch.tensor(reply.logprobs), own, atol=1e-4, rtol=0)


def test_each_snapshot_samples_its_own_weights(sampler: Sampler, adapted: list[tuple[PeftModel, Snapshot]]) -> None:
    """Also in turns of one conversation, whose keys by older weights are not used, and three at the same time."""
    tokens = SHARED
    for turn in range(4):
        requests = [SampleRequest(tokens, 12, turn, snapshot) for _, snapshot in adapted]
        replies = ask(sampler, *requests)
        for (model, _), reply in zip(adapted, replies, strict=True):
            assert_logprobs(model, tokens, reply)
        assert len({tuple(reply.tokens) for reply in replies}) == 3
        tokens = tokens + replies[turn % 3].tokens + [5, 6, 7]


def test_prompt_logprobs(base: PreTrainedModel, sampler: Sampler) -> None:
    prompt = [random.Random(4).randrange(3, 640) for _ in range(300)]
    ask(sampler, SampleRequest(prompt, 4, 0, BASE))  # what is in the cache must be computed again
    reply = ask(sampler, SampleRequest(prompt, 4, 0, BASE, prompt_logprobs=True))[0]
    assert reply.prompt_logprobs is not None
    assert reply.prompt_logprobs[0] is None
    torch.testing.assert_close(torch.tensor(reply.prompt_logprobs[1:]), token_logprobs(base, prompt), atol=1e-4, rtol=0)


def test_replies_end_with_a_stop_token_or_at_their_length(sampler: Sampler) -> None:
    free = ask(sampler, SampleRequest(SHARED, 60, 0, BASE))[0]
    assert (free.stop_reason, len(free.tokens)) == ("length", 60)
    stop = free.tokens[10]
    until = free.tokens.index(stop) + 1
    stopped = ask(sampler, SampleRequest(SHARED, 60, 0, BASE, stop_token_ids=[stop, 639]))[0]
    assert stopped == Reply(free.tokens[:until], free.logprobs[:until], "stop", None)
    last = ask(sampler, SampleRequest(SHARED, until, 0, BASE, stop_token_ids=[stop]))[0]
    assert last.stop_reason == "stop"


def test_replies_end_with_the_token_that_completes_a_stop_string(sampler: Sampler) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    free = ask(sampler, SampleRequest(SHARED, 60, 0, BASE))[0]
    text = tokenizer.decode(free.tokens)
    wanted = text[len(text) // 2 : len(text) // 2 + 3]
    stopped = ask(sampler, SampleRequest(SHARED, 60, 0, BASE, stop_strings=["never said", wanted]))[0]
    assert stopped.stop_reason == "stop"
    assert stopped.tokens == free.tokens[: len(stopped.tokens)]
    assert wanted in tokenizer.decode(stopped.tokens)
    assert wanted not in tokenizer.decode(stopped.tokens[:-1])


def test_temperature_zero_and_top_k_one_take_the_likeliest_token(base: PreTrainedModel, sampler: Sampler) -> None:
    ways: list[dict[str, float]] = [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}]
    replies = ask(sampler, *(replace(SampleRequest(SHARED, 20, 0, BASE), **way) for way in ways))
    assert all(reply == replies[0] for reply in replies)
    assert_logprobs(base, SHARED, replies[0])
    with torch.inference_mode():
        likeliest = base(torch.tensor([SHARED + replies[0].tokens])).logits[0, len(SHARED) - 1 : -1].argmax(dim=-1)
    assert likeliest.tolist() == replies[0].tokens


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [3, 640]}, "vocabulary of 640"),
        ({"prompt": [3, -1]}, "vocabulary of 640"),
        ({"prompt": [3] * 8190}, "context is 8192"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
    ],
)
def test_a_request_at_fault_fails_alone(sampler: Sampler, change: dict[str, object], reason: str) -> None:
    good = SampleRequest([3, 4, 5], 4, 0, BASE)
    futures = [sampler.submit(request) for request in (good, replace(good, **change), good)]
    with pytest.raises(UserError, match=reason):
        futures[1].result()
    assert futures[0].result() == futures[2].result()


def test_what_the_cache_cannot_hold_is_refused_and_the_rest_waits_for_room(base: PreTrainedModel) -> None:
    token_bytes = 2 * 6 * 48 * 4
    sampler = Sampler(base, cache_bytes=3 * 1024 * token_bytes)
    with pytest.raises(UserError, match="cache cannot hold 4001 tokens"):
        ask(sampler, SampleRequest([3], 4000, 0, BASE))
    rng = random.Random(6)
    requests = [
        SampleRequest([rng.randrange(3, 640) for _ in range(length)], 10, seed, BASE)
        for seed, length in enumerate([900, 20, 900, 3000, 30, 900, 40, 900, 20, 900])
    ]
    roomy = Sampler(base)
    assert ask(sampler, *requests) == ask(roomy, *requests)
    roomy.close()
    sampler.close()


def test_weights_that_have_diverged_are_an_error(sampler: Sampler, adapted: list[tuple[PeftModel, Snapshot]]) -> None:
    _, snapshot = adapted[0]
    broken = Snapshot({path: pair._replace(b=pair.b * torch.nan) for path, pair in snapshot.adapter.items()}, 1.0)
    bad, good = (sampler.submit(SampleRequest(SHARED, 4, 0, weights)) for weights in (broken, BASE))
    with pytest.raises(FloatingPointError, match="not finite"):
        bad.result()
    assert len(good.result().tokens) == 4
    assert len(ask(sampler, SampleRequest(SHARED, 4, 1, snapshot))[0].tokens) == 4  # where the broken one was


def test_cancelled_and_unfinished_requests(base: PreTrainedModel) -> None:
    sampler = Sampler(base, slots=1)
    running, cancelled, after = (sampler.submit(SampleRequest([3, 4], 30, seed, BASE)) for seed in range(3))
    assert cancelled.cancel()
    assert len(running.result().tokens) == len(after.result().tokens) == 30
    with pytest.raises(CancelledError):
        cancelled.result()
    unfinished = [sampler.submit(SampleRequest([3, 4], 4000, seed, BASE)) for seed in range(2)]
    sampler.close()
    late = sampler.submit(SampleRequest([3, 4], 4, 0, BASE))
    for future in (*unfinished, late):
        with pytest.raises(RuntimeError, match="closed"):
            future.result()
