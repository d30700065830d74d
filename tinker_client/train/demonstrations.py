"""Demonstrations for supervised fine-tuning: chats from a file, checked, and the order they are trained on.

JSONL is read here, so that an error names its line and a pipe will do; Parquet, saved datasets and the hub are up to
the package `datasets`, which is imported only then.
"""

import hashlib
import json
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_client.errors import UserError
from tinker_client.play.chat import ChatTemplate, Conversation, Message, conversation_of


@dataclass(frozen=True)
class Demonstration:
    """A chat. where: its place in what it was read from, such as `line 3`. depth: of its task, as far as that says."""

    where: str
    depth: str
    messages: list[Message]


def read_demonstrations(source: Path, split: str = "train") -> list[Demonstration]:
    """The demonstrations of a file, a saved dataset or one on the hub (`read_rows`), in their order.

    Raises UserError, with the row, for what cannot be read, is not a demonstration, or comes from the val split, which
    is for measuring only.
    """
    demonstrations = []
    for where, row in read_rows(str(source), split):
        if problem := _problem(row):
            raise UserError(f"{source}, {where}: {problem}")
        demonstrations.append(Demonstration(where, str(row.get("depth", "unknown")), row["messages"]))
    if not demonstrations:
        raise UserError(f"{source} holds no demonstration: make it with `python -m sft_data --out {source}`")
    return demonstrations


def read_rows(source: str, split: str = "train") -> Iterator[tuple[str, Any]]:
    """Where each row of the demonstrations stands (`line 3`, `row 3`), counted from 1, and what it says.

    source: a JSONL or Parquet file, the folder of a saved dataset, or the name of a dataset on the hub.
    split: which part of a saved dataset with several, or of one on the hub.
    A field that is null is left out: that is how Arrow writes a field which a row does not have.
    Raises UserError, with the row where there is one.
    """
    path = Path(source)
    if path.is_dir() or path.suffix == ".parquet" or not (path.exists() or path.suffix in (".jsonl", ".json")):
        for number, row in enumerate(_dataset(source, split), start=1):
            yield f"row {number}", _without_nulls(row)
    else:
        for number, row in _json_lines(path):
            yield f"line {number}", _without_nulls(row)


def digest(demonstrations: Sequence[Demonstration]) -> str:
    """SHA-256 of what was read: the same chats have the same, whatever holds them, a pipe included."""
    chats = [demonstration.messages for demonstration in demonstrations]
    return hashlib.sha256(json.dumps(chats, sort_keys=True).encode()).hexdigest()


def check_text(source: Path, demonstrations: Sequence[Demonstration], template: ChatTemplate) -> None:
    """Raises UserError, with the row, for a chat of `source` that the model would not read as it is written."""
    for demonstration in demonstrations:
        if problem := template.problem(demonstration.messages):
            raise UserError(f"{source}, {demonstration.where}: {problem}")


def tokenize(chats: Sequence[Sequence[Message]], template: ChatTemplate, context_length: int) -> list[Conversation]:
    """The chats as conversations. Raises UserError for one that is longer than `context_length` tokens."""
    conversations = [conversation_of(template, chat) for chat in chats]
    longest = max(len(conversation.tokens) for conversation in conversations)
    if longest > context_length:
        raise UserError(
            f"the longest demonstration has {longest} tokens, the context holds {context_length}: take shallower tasks"
        )
    return conversations


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: str) -> list[list[int]]:
    """One epoch over `len(lengths)` demonstrations: batches of indices, each index once, in an order set by the seed.

    lengths: tokens of each demonstration. Those of a batch are similar, so that little of it is padding; the noise in
    the sorting makes other batches in every epoch.
    """
    rng = random.Random(seed)
    noisy = [length * rng.uniform(0.8, 1.25) for length in lengths]
    by_length = sorted(range(len(lengths)), key=noisy.__getitem__)
    batches = [by_length[i : i + batch_size] for i in range(0, len(by_length), batch_size)]
    rng.shuffle(batches)
    return batches


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({error}): make it with `python -m sft_data --out {path}`") from error
    # Not splitlines: JSON may hold other line separators, such as U+2028, as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not JSON ({error})") from error


def _dataset(source: str, split: str) -> Any:
    import datasets  # noqa: PLC0415 - seconds, and not for JSONL

    datasets.disable_progress_bars()
    path = Path(source)
    try:
        if path.is_dir():
            saved = datasets.load_from_disk(source)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        if path.suffix == ".parquet":
            # keep_in_memory and a cache that goes at once: no copy stays in the user's folders.
            with tempfile.TemporaryDirectory() as cache:
                return datasets.Dataset.from_parquet(source, cache_dir=cache, keep_in_memory=True)
        return datasets.load_dataset(source, split=split)
    except Exception as error:  # whatever datasets, pyarrow and the hub raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"cannot read {source}, split {split} ({type(error).__name__}: {reason}): give a JSONL or Parquet file, "
            "the folder of a saved dataset, or the name of one on the hub"
        ) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


def _problem(row: Any) -> str | None:
    """What keeps a row from being a demonstration to train on."""
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        return 'no "messages": every row is {"id", "task_id", "depth", "kind", "messages"}'
    if ".val." in str(row.get("task_id")):
        return f"{row['task_id']} is a val task, for measuring only: make the file with `--split train`"
    return _chat_problem(row["messages"])


def _chat_problem(messages: list[Any]) -> str | None:
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return 'a message without "content" as text'
        if half := re.search("[\ud800-\udfff]", message["content"]):
            return f"{half[0]!r} is half a character (a lone surrogate), which has no tokens: write it whole"
        if message.get("weight", 1) not in (0, 1):
            return f'"weight" {message["weight"]!r}: it is 1 (trained on) or 0 (context only)'
    roles = [message.get("role") for message in messages]
    opening = 2 if roles[:1] == ["system"] else 1
    turns = len(roles) - opening
    if turns % 2 == 0 or roles[opening - 1 :] != ["user", "assistant"] * (turns // 2 + 1):
        return 'roles must be system (optional), then user and assistant in turn, ending with "assistant"'
    if not any(message.get("weight", 1) for message in messages if message["role"] == "assistant"):
        return "no reply is trained on (every weight is 0)"
    return None
