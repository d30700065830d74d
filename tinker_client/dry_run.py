"""What a script would do, without doing it: `--dry-run`."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tinker_client.play.chat import ChatTemplate
from tinker_client.play.environment import Environment, Task
from tinker_client.train.demonstrations import Demonstration, tokenize


def print_play(
    environment: Environment[Any],
    tasks: Sequence[Task],
    factors: Mapping[str, int],
    max_turns: int,
    max_reply_tokens: int,
) -> None:
    """The tasks by depth, the ceiling of the budget, and the most that the episodes could take.

    factors: what multiplies to the number of episodes, by name.
    """
    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD)
    for header in ("depth", "tasks", "ideal turns", f"fit {max_turns}", "ceiling"):
        table.add_column(header, justify="right")
    ideal = [(task.depth, environment.ideal_turns(task)) for task in tasks]
    depths = sorted({task.depth for task in tasks})
    groups = [(str(depth), [turns for of_depth, turns in ideal if of_depth == depth]) for depth in depths]
    for name, turns in [*groups, ("all", [turns for _, turns in ideal])]:
        fit = sum(count <= max_turns for count in turns)
        cells = (str(len(turns)), f"{median(turns):g} ({min(turns)}-{max(turns)})", str(fit), f"{fit / len(turns):.3f}")
        table.add_row(name, *cells, end_section=name == groups[-1][0])
    console.print(table)
    episodes = math.prod(factors.values())
    why = " x ".join(f"{count} {name}" for name, count in factors.items())
    console.print(f"{episodes:,} episodes ({why})")
    console.print(f"at most {episodes * max_turns:,} turns, {max_turns} an episode")
    console.print(f"at most {episodes * max_turns * max_reply_tokens:,} sampled tokens, {max_reply_tokens} a turn")
    console.print("dry run: nothing was started or written")


def print_supervised(
    demonstrations: Sequence[Demonstration],
    trained_on: Sequence[Demonstration],
    epochs: int,
    batch_size: int,
    template: ChatTemplate | None,
) -> None:
    """All demonstrations by depth, and what training on those that are not held out would take: optimizer steps, and
    tokens with a loss if there is a template to make them with."""
    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD)
    for header in ("depth", "demonstrations"):
        table.add_column(header, justify="right")
    counts = Counter(demonstration.depth for demonstration in demonstrations)
    for depth, count in sorted(counts.items()):
        table.add_row(depth, str(count))
    console.print(table)
    steps = epochs * -(-len(trained_on) // batch_size)
    held_out = counts.total() - len(trained_on)
    console.print(
        f"{len(trained_on)} demonstrations ({held_out} are held out) x {epochs} epochs: {steps} optimizer steps"
    )
    if template is None:
        console.print("tokens not counted: give --model or --tokenizer")
    else:
        conversations = tokenize([chat.messages for chat in trained_on], template, context_length=2**31)
        actions = sum(conversation.action_tokens for conversation in conversations)
        longest = max(len(conversation.tokens) for conversation in conversations)
        console.print(f"{epochs * actions:,} tokens with a loss; the longest demonstration has {longest:,} tokens")
    console.print("dry run: nothing was started or written")
