"""Small models with random weights of every architecture that the local engine runs, and adapters on them."""

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from server.local.model import LoraPair, Snapshot, load_base

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "max_position_embeddings": 1024,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**SIZES, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, num_attention_heads=4, num_key_value_heads=1, head_dim=24, tie_word_embeddings=False),
    "smollm2": LlamaConfig(**SIZES, num_attention_heads=3, num_key_value_heads=3, tie_word_embeddings=True),
    "llama": LlamaConfig(
        **SIZES,
        num_attention_heads=6,
        num_key_value_heads=2,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=LLAMA3_ROPE,
    ),
}


def save_random(config: PreTrainedConfig, folder: Path) -> Path:
    """Write a model of this configuration, with weights large enough that no token is a matter of course."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif parameter.ndim == 1:  # biases, which transformers starts at zero
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    return folder


def with_adapter(folder: Path, seed: int) -> tuple[PeftModel, Snapshot]:
    """A copy of the folder's model with a random adapter, and the snapshot that must sample the same."""
    torch.manual_seed(seed)
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(load_base(folder), LoraConfig(r=4, lora_alpha=8, target_modules=layers))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    adapter = {
        name.removeprefix("base_model.model."): LoraPair(
            module.lora_A["default"].weight.detach().clone(), module.lora_B["default"].weight.detach().clone()
        )
        for name, module in model.named_modules()
        if hasattr(module, "lora_A")
    }
    return model.eval(), Snapshot(adapter, scaling=2.0)


def token_logprobs(model: PreTrainedModel | PeftModel, tokens: list[int]) -> torch.Tensor:
    """transformers' log-probability of every token but the first."""
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        logprobs = model(ids, use_cache=False).logits.log_softmax(dim=-1)
    return logprobs[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
