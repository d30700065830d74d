"""`python -m sft_data` writes demonstrations as chats, `facts` counts their turns, `rank` compares wordings."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sft_data.dataset import every_task, replies, sample, train_on_every_reply
from sft_data.facts import facts, print_facts
from sft_data.files import DataError, Row, write_rows
from sft_data.procedure import ROUNDS
from sft_data.wording import WORDINGS, WordingName
from textcraft.world import BenchmarkError, Difficulty, Split, Task, load_tasks

REPLY_CAP = 512  # tokens that the post lets a model sample in one turn
MEDIUM = (4, 5, 6)
DEFAULT_COUNT = {1: 50, 2: 150}
_DESCRIPTIONS = {
    "": "Write demonstrations as chats and print what was written. "
    "`python -m sft_data facts` counts the turns of every task's demonstrations instead, and `python -m sft_data rank` "
    "ranks the wordings by a model's perplexity.",
    "facts": "Turns of the ideal run and of both rounds' demonstrations, per split, difficulty and depth.",
    "rank": "Rank the wordings by how well a base model predicts their replies, on the same tasks. "
    "Without --base-url it starts SkyRL's server on this machine's CPU.",
}


@dataclass
class Config:
    out: Path
    """What to write, replacing what is there: a file of chats as JSONL, one a line; as Parquet if its name ends in
    .parquet; or, without an ending, the folder of a saved dataset."""
    round: Literal[1, 2] = 2
    """The procedure: 1 the post's first, 2 its second (shorter turns, running totals, what is left of each layer)."""
    count: int | None = None
    """Demonstrations, each of another task; 0 is one perfect one of every selected task.
    Default: 50 in round 1, 150 in round 2."""
    recovery: int | None = None
    """How many of them make mistakes and repair them. Default: none in round 1, a fifth of --count in round 2."""
    mistakes: int = 1
    """Mistakes in each of these."""
    train_on_mistakes: bool = False
    """Give the replies that make a mistake weight 1 too."""
    split: Split = "train"
    """Tasks to take. Rows from val are for measuring only; train_sft.py refuses them."""
    depths: tuple[int, ...] | None = None
    """Depths to take, an equal share each. Default: 4 5 6, or all with --difficulty or --count 0."""
    difficulty: Difficulty | None = None
    """easy is depth 2-3, medium 4-6, hard 7-9, extreme 10-12."""
    seed: int = 0
    """Chooses the tasks, their order and the mistakes."""
    wording: WordingName = "post"
    """post: the post's sentences. terse: the same content in few tokens, for very small models. prose: whole
    sentences. equations: as in code. `python -m sft_data rank` says which one a model finds easiest to predict."""
    tokenizer: str | None = None
    """Name or directory of a Hugging Face tokenizer: also count the tokens of every reply."""


@dataclass
class FactsConfig:
    splits: tuple[Split, ...] = ("val", "train")
    """Splits to count; val takes seconds, train half a minute."""
    json: bool = False
    """Print JSON instead of tables."""


def main(arguments: Sequence[str]) -> None:
    try:
        if arguments[:1] == ["facts"]:
            show_facts(_parse(FactsConfig, "facts", arguments[1:]))
        elif arguments[:1] == ["rank"]:
            from sft_data import rank  # noqa: PLC0415 - the only command that needs a model and its server
            from tinker_client.errors import exit_on_user_error  # noqa: PLC0415

            with exit_on_user_error():
                rank.main(_parse(rank.Config, "rank", arguments[1:]))
        else:
            write(_parse(Config, "", arguments))
    except (DataError, BenchmarkError) as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(2)


def _parse[T](config: type[T], command: str, arguments: Sequence[str]) -> T:
    return tyro.cli(
        config,
        args=arguments,
        prog=f"python -m sft_data {command}".strip(),
        description=_DESCRIPTIONS[command],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def show_facts(config: FactsConfig) -> None:
    figures = facts(config.splits, Console(stderr=True))
    if config.json:
        print(json.dumps(figures, indent=2))
    else:
        print_facts(figures, Console())


def write(config: Config) -> None:
    count = DEFAULT_COUNT[config.round] if config.count is None else config.count
    recovery = (count // 5 if config.round == 2 else 0) if config.recovery is None else config.recovery
    check_numbers(config, count, recovery)
    tasks = select_tasks(config)
    tokens = None if config.tokenizer is None else token_counter(config.tokenizer)
    procedure = replace(ROUNDS[config.round], wording=WORDINGS[config.wording])
    if count == 0:
        rows = every_task(tasks, procedure)
    else:
        rows = sample(tasks, procedure, count, recovery=recovery, mistakes=config.mistakes, seed=config.seed)
    if config.train_on_mistakes:
        train_on_every_reply(rows)
    write_rows(config.out, rows)
    print_summary(rows, config.out, tokens)


def check_numbers(config: Config, count: int, recovery: int) -> None:
    if count < 0 or not 0 <= recovery <= count:
        raise DataError("--count must not be negative, and --recovery must lie between 0 and --count")
    if recovery and config.round == 1:
        raise DataError("round 1 has no recovery: use --round 2 or leave --recovery at 0")
    if config.mistakes < 1:
        raise DataError("--mistakes must be at least 1; for demonstrations without mistakes use --recovery 0")


def select_tasks(config: Config) -> list[Task]:
    depths = config.depths
    if depths is None and config.difficulty is None and config.count != 0:
        depths = MEDIUM
    tasks = load_tasks(config.split, config.difficulty, depths)
    if not tasks:
        raise DataError("no task is left: give --depths from 2 to 12 that lie within --difficulty")
    return tasks


def token_counter(name: str) -> Callable[[str], int]:
    """Counts the tokens of a reply with the tokenizer `name`. Raises DataError if it cannot be loaded."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds, and only for this

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise DataError(f"no tokenizer can be loaded from {name!r}: give a directory or a cached model name") from error
    return lambda reply: len(tokenizer(reply, add_special_tokens=False)["input_ids"])


def print_summary(rows: Sequence[Row], out: Path, tokens: Callable[[str], int] | None) -> None:
    console = Console()
    table = Table(title=f"{len(rows)} demonstrations in {escape(str(out))}")
    for header in ("kind", "depth", "rows", "turns", "range", "weight 0"):
        table.add_column(header, justify="left" if header == "kind" else "right")
    if tokens:
        table.add_column("most tokens", justify="right")
    lengths = {reply: tokens(reply) for row in rows for reply in replies(row)} if tokens else {}
    # Perfect ones first, then kinds by name.
    groups = sorted({(row["kind"], row["depth"]) for row in rows}, key=lambda group: (group[0] != "perfect", group))
    for kind, depth in groups:
        group = [row for row in rows if (row["kind"], row["depth"]) == (kind, depth)]
        turns = [len(replies(row)) for row in group]
        weights = [message["weight"] for row in group for message in row["messages"] if "weight" in message]
        cells = [kind, depth, len(group), f"{median(turns):g}", f"{min(turns)}-{max(turns)}", weights.count(0)]
        if tokens:
            cells.append(max(lengths[reply] for row in group for reply in replies(row)))
        table.add_row(*map(str, cells))
    console.print(table)
    too_long = [length for row in rows for reply in replies(row) if (length := lengths.get(reply, 0)) > REPLY_CAP]
    if too_long:
        console.print(
            f"[yellow]warning:[/] {len(too_long)} replies are over {REPLY_CAP} tokens, the longest has {max(too_long)}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
