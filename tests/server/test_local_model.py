"""Loading a base model for the local engine, and its sampling forward pass against transformers'."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, Qwen3Config

from server.local.model import LoraPair, Snapshot, load_base
from server.local.sampler import Sampler, SampleRequest
from tests.server.random_models import CONFIGS, SIZES, VOCABULARY, save_random, token_logprobs, with_adapter
from tinker_client.errors import UserError

BASE = Snapshot({}, scaling=1.0)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_replies_have_the_logprobs_of_transformers_and_peft(architecture: str, tmp_path: Path) -> None:
    folder = save_random(CONFIGS[architecture], tmp_path)
    adapted, snapshot = with_adapter(folder, seed=1)
    sampler = Sampler(load_base(folder))
    rng = random.Random(0)
    for model, sampled in ((load_base(folder), BASE), (adapted, snapshot)):
        tokens = [rng.randrange(VOCABULARY) for _ in range(30)]
        for turn in range(3):
            reply = sampler.submit(SampleRequest(tokens, 11, turn, sampled, prompt_logprobs=turn == 2)).result()
            expected = token_logprobs(model, tokens + reply.tokens)
            torch.testing.assert_close(torch.tensor(reply.logprobs), expected[len(tokens) - 1 :], atol=1e-4, rtol=0)
            if reply.prompt_logprobs is not None:
                prompt = torch.tensor(reply.prompt_logprobs[1:])
                torch.testing.assert_close(prompt, expected[: len(tokens) - 1], atol=1e-4, rtol=0)
            tokens = tokens + reply.tokens + [rng.randrange(VOCABULARY) for _ in range(9)]
    sampler.close()


@pytest.mark.parametrize("architecture", CONFIGS)
def test_equal_bits_with_any_number_of_heads(architecture: str, tmp_path: Path) -> None:
    """Of a conversation in company, whose turns are cached, and of one that is read at once."""
    base = load_base(save_random(CONFIGS[architecture], tmp_path))
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(length)] for length in (1, 13, 40, 200, 390)]
    in_company, alone = Sampler(base), Sampler(base)
    for turn in range(3):
        requests = [SampleRequest(prompt, 15, turn, BASE) for prompt in prompts]
        futures = [in_company.submit(request) for request in requests]
        replies = [future.result() for future in futures]
        for request, reply in zip(requests, replies, strict=True):
            other_weights = Snapshot({}, scaling=1.0)  # the same numbers, but none of its keys are cached
            assert alone.submit(replace(request, snapshot=other_weights)).result() == reply
        prompts = [prompt + reply.tokens + [turn] for prompt, reply in zip(prompts, replies, strict=True)]
    in_company.close()
    alone.close()


def test_base_is_float32_and_without_gradients(tmp_path: Path) -> None:
    config = Qwen3Config(**SIZES, num_attention_heads=4, num_key_value_heads=1, head_dim=24, dtype="bfloat16")
    base = load_base(save_random(config, tmp_path))
    assert {parameter.dtype for parameter in base.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in base.parameters())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=1, n_head=2), "GPT2LMHeadModel"),
        (Qwen3Config(**SIZES, num_attention_heads=4, hidden_act="gelu"), "gelu"),
        (
            Qwen3Config(**SIZES, num_attention_heads=4, use_sliding_window=True, sliding_window=8, max_window_layers=1),
            "sliding",
        ),
        (
            Qwen3Config(
                **SIZES,
                num_attention_heads=4,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            ),
            "dynamic",
        ),
    ],
)
def test_a_model_of_another_kind_is_refused_by_name(config: object, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason) as refused:
        load_base(save_random(config, tmp_path))
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model can be loaded"):
        load_base(tmp_path)


def test_an_adapter_of_another_model_fails_its_own_requests_only(tmp_path: Path) -> None:
    sampler = Sampler(load_base(save_random(CONFIGS["qwen3"], tmp_path)))
    unknown = Snapshot({"model.layers.7.self_attn.q_proj": LoraPair(torch.zeros(4, 48), torch.zeros(96, 4))}, 1.0)
    bad, good = (sampler.submit(SampleRequest([1, 2, 3], 5, 0, snapshot)) for snapshot in (unknown, BASE))
    with pytest.raises(ValueError, match=r"layers\.7"):
        bad.result()
    assert len(good.result().tokens) == 5
    sampler.close()
