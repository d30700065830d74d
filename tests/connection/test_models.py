"""Model names and the tokens that end a turn."""

import pytest
import tinker
from transformers import AutoTokenizer

from tinker_client.connection import models
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.connection.models import TINY_MODEL, load_tokenizer, local_model_dir, stop_token_ids
from tinker_client.errors import UserError

TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "end of turn after a space": "{% for m in messages %}[{{ m.role }}] {{ m.content }} <|endoftext|>{% endfor %}",
}


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_MODEL)


@pytest.mark.parametrize(
    ("template", "token"), [("chatml", "<|im_end|>"), ("end of turn after a space", "<|endoftext|>")]
)
def test_the_stop_token_is_what_the_template_writes_not_the_eos_token(tokenizer, template, token):
    tokenizer.chat_template = TEMPLATES[template]
    tokenizer.eos_token = "<|im_start|>"
    assert tokenizer.convert_ids_to_tokens(stop_token_ids(tokenizer)) == [token]


def test_a_template_without_a_token_at_the_end_of_a_turn_is_refused(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(UserError, match="no special token"):
        stop_token_ids(tokenizer)


def test_the_default_model_is_the_shipped_one():
    assert local_model_dir(None) == local_model_dir("tiny") == TINY_MODEL


def test_a_directory_means_itself(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert local_model_dir(str(tmp_path)) == tmp_path


def test_unknown_models_and_unfit_directories_end_in_one_line(tmp_path):
    for name in ("Qwen/Qwen3.5-4B", str(tmp_path / "missing"), str(tmp_path)):
        with pytest.raises(UserError, match=r"--model|no model directory") as caught:
            local_model_dir(name)
        assert "\n" not in str(caught.value)


def test_a_tokenizer_that_cannot_be_had_ends_in_one_line(tmp_path):
    for name in (str(tmp_path), "nobody/no-such-model"):
        with pytest.raises(UserError, match="--tokenizer") as caught:
            load_tokenizer(name)
        assert "\n" not in str(caught.value)


def test_a_conversion_that_fails_leaves_no_half_model(tmp_path):
    def fail(folder):
        (folder / "model.safetensors").touch()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        models._make_once(tmp_path / "smol", fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_smollm2_starts_samples_stops_and_takes_a_training_step(tmp_path):
    """Minutes on a CPU, and needs the extra `smollm2`."""
    with connect(BackendConfig(model="smollm2"), tmp_path, rank=8) as backend:
        trainer = backend.new_training_client(rank=8, seed=0)
        chat = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
        tokenizer = backend.tokenizer
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = tinker.ModelInput.from_ints(tokenizer.encode(text, add_special_tokens=False))
        params = tinker.SamplingParams(max_tokens=32, temperature=0.0, seed=0, stop=backend.stop_token_ids)
        sampler = backend.sampling_client(trainer)
        (reply,) = sampler.sample(prompt, num_samples=1, sampling_params=params).result(600).sequences
        assert tokenizer.decode(reply.tokens).endswith("<|im_end|>")
        assert "Paris" in tokenizer.decode(reply.tokens)

        targets = prompt.to_ints()[1:] + reply.tokens[:1]
        datum = tinker.Datum(
            model_input=prompt, loss_fn_inputs={"target_tokens": targets, "weights": [1.0] * len(targets)}
        )
        trainer.forward_backward([datum], "cross_entropy").result(600)
        step = trainer.optim_step(tinker.AdamParams(learning_rate=1e-4)).result(600)
        assert step.metrics["skyrl.ai/grad_norm"] > 0
