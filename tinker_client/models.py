"""Which model a name means to the local server, and which tokens end a turn of it."""

from pathlib import Path
from typing import Any

Tokenizer = Any  # transformers ships no usable types for its tokenizers


def local_model_dir(name: str | None) -> Path:
    """The folder of weights and tokenizer that the local server loads for `--model name`.

    None or "tiny": the model shipped in server/tiny_model. "smollm2": SmolLM2-135M-Instruct, converted once into a cache
    folder. A directory: itself. Raises UserError for anything else, since the local server downloads nothing.
    """
    raise NotImplementedError


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer with a chat template of a folder or of a Hugging Face name. Raises UserError if it cannot be had."""
    raise NotImplementedError


def stop_token_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that end an assistant's turn: what the chat template puts right after the message's content.

    `tokenizer.eos_token_id` is no substitute: for SmolLM2's GGUF it is a token that the template never writes.
    Raises UserError if the template writes no special token there.
    """
    raise NotImplementedError
