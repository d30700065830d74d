"""Demonstrations for supervised fine-tuning: reading a JSONL file of chats, and the order they are trained on."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinker_client.errors import UserError
from tinker_client.play.chat import ChatTemplate, Conversation, Message, demonstration


def read_demonstrations(path: Path) -> list[list[Message]]:
    """The chats of a file made by `python -m sft_data`, in its order.

    Raises UserError, with the line, for what is not a demonstration or comes from the val split, which is for
    measuring only.
    """
    chats = []
    for number, row in read_lines(path):
        if problem := _problem(row):
            raise UserError(f"{path}, line {number}: {problem}")
        chats.append(row["messages"])
    if not chats:
        raise UserError(f"{path} holds no demonstration: make it with `python -m sft_data --out {path}`")
    return chats


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The number of each line of a JSONL file, from 1, and what it says. Raises UserError for what cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({error}): make it with `python -m sft_data --out {path}`") from error
    # Not splitlines: JSON may hold other line separators, such as U+2028, as they are.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not JSON ({error})") from error


def check_text(path: Path, chats: Sequence[Sequence[Message]], template: ChatTemplate) -> None:
    """Raises UserError, with the line, for a chat of the file `path` that the model would not read as it is written."""
    for number, chat in enumerate(chats, start=1):
        if problem := template.problem(chat):
            raise UserError(f"{path}, line {number}: {problem}")


def tokenize(chats: Sequence[Sequence[Message]], template: ChatTemplate, context_length: int) -> list[Conversation]:
    """The chats as conversations. Raises UserError for one that is longer than `context_length` tokens."""
    conversations = [demonstration(template, chat) for chat in chats]
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
