"""Success rates with honest intervals, and the tables that show them. Reads rows of episodes files, needs no server."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from scipy import stats

Row = Mapping[str, Any]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def bounds(self, sign: str = "") -> str:
        """The interval as text; `sign` "+" shows the sign of positive numbers too."""
        return f"[{self.low:{sign}.3f}, {self.high:{sign}.3f}]"


@dataclass(frozen=True)
class Summary:
    """What a set of episodes shows. Turns, failed crafts, ... are means per episode.

    episodes: the ones that were played; `broken` ones (the server failed) are in no other number.
    """

    tasks: int
    episodes: int
    broken: int
    success: Interval
    turns: float
    failed_crafts: float
    invalid_turns: float
    cut_off_replies: float
    action_tokens: float

    def to_json(self) -> dict[str, Any]:
        """The summary as summary.json holds it."""
        return asdict(self)


def summarize(rows: Sequence[Row]) -> Summary:
    """The summary of some episodes."""
    played = [row for row in rows if row["end"] != "broken"]
    n = max(len(played), 1)

    def per_episode(matches: Callable[[Row], bool]) -> float:
        """Mean number of turns of an episode that match."""
        return sum(matches(turn) for row in played for turn in row["turns"]) / n

    return Summary(
        tasks=len({row["task_id"] for row in played}),
        episodes=len(played),
        broken=len(rows) - len(played),
        success=success_interval(_successes_by_task(played)),
        turns=per_episode(lambda turn: True),
        failed_crafts=per_episode(lambda turn: turn["kind"] == "failed_craft"),
        invalid_turns=per_episode(lambda turn: turn["kind"] == "invalid"),
        cut_off_replies=per_episode(lambda turn: turn["cut_off"]),
        action_tokens=sum(row["action_tokens"] for row in played) / n,
    )


def summarize_by_depth(rows: Sequence[Row]) -> dict[int, Summary]:
    """The summary of the episodes of each depth, in ascending order."""
    depths = sorted({row["depth"] for row in rows})
    return {depth: summarize([row for row in rows if row["depth"] == depth]) for depth in depths}


def success_interval(successes_by_task: Sequence[Sequence[bool]]) -> Interval:
    """The success rate over all episodes, with a 95 % interval that knows that episodes of one task are alike.

    Wilson's interval, with the number of episodes divided by the design effect: the variance of the rate as it is
    between tasks, over what it would be were all episodes independent (Kish 1965; Dean and Pagano 2015, section 2).
    The effect is kept between 1 and the number of rollouts a task, which it also is where no episode or every episode
    succeeds and the data cannot tell. With one rollout a task this is Wilson's interval itself.
    """
    counts = np.array([len(outcomes) for outcomes in successes_by_task], float)
    solved = np.array([sum(outcomes) for outcomes in successes_by_task], float)
    n, tasks = counts.sum(), len(counts)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    rate = solved.sum() / n
    rollouts = n / tasks
    if tasks > 1 and 0 < rate < 1:
        between = tasks / (tasks - 1) * ((solved - rate * counts) ** 2).sum() / n**2
        effect = float(np.clip(between / (rate * (1 - rate) / n), 1.0, rollouts))
    else:
        effect = rollouts
    low, high = _wilson(rate, n / effect)
    return Interval(float(rate), low, high)


def paired_difference(rows: Sequence[Row], other: Sequence[Row]) -> Interval:
    """Success of `other` minus success of `rows`, over the tasks that both played, with a 95 % interval.

    A t interval over the tasks' differences, to which one pseudo-task without difference and half a one in each
    direction are added: Agresti and Min (2005) for matched pairs, so that the interval is never empty.
    """
    first, second = (
        {task: float(np.mean(outcomes)) for task, outcomes in _by_task(some).items()} for some in (rows, other)
    )
    differences = [second[task] - first[task] for task in first.keys() & second.keys()]
    if not differences:
        return Interval(math.nan, -1.0, 1.0)
    values = np.array([*differences, 1.0, -1.0, 0.0])
    weights = np.array([1.0] * len(differences) + [0.5, 0.5, 1.0])
    center = np.average(values, weights=weights)
    error = math.sqrt(np.average((values - center) ** 2, weights=weights) / weights.sum())
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, df=weights.sum() - 1)) * error
    return Interval(float(np.mean(differences)), max(center - reach, -1.0), min(center + reach, 1.0))


def summary_table(title: str, summaries: Mapping[str, Summary]) -> Table:
    """One row for each named summary."""
    table = _table(title, "success", "95 % interval", "n", "turns", "failed crafts", "invalid turns", "cut off")
    for name, s in summaries.items():
        n = str(s.episodes) if s.episodes == s.tasks else f"{s.episodes} of {s.tasks} tasks"
        broken = f" (+{s.broken} broken)" if s.broken else ""
        means = (f"{mean:.1f}" for mean in (s.turns, s.failed_crafts, s.invalid_turns, s.cut_off_replies))
        table.add_row(name, f"{s.success.value:.3f}", s.success.bounds(), n + broken, *means)
    table.caption = "turns, failed crafts, invalid turns and cut-off replies are means per episode"
    return table


def comparison_table(evaluations: Mapping[str, Sequence[Row]]) -> Table:
    """The paired differences between each evaluation and the one before it, and the first."""
    names = list(evaluations)
    title = "Difference in success over the tasks that both played"
    table = _table(title, "difference", "95 % interval", "better", "worse", "equal")
    for i in range(1, len(names)):
        for base in dict.fromkeys((names[0], names[i - 1])):
            first, second = evaluations[base], evaluations[names[i]]
            difference = paired_difference(first, second)
            row = (f"{difference.value:+.3f}", difference.bounds("+"), *_outcomes(first, second))
            table.add_row(f"{names[i]} - {base}", *row)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=column == "95 % interval")
    return table


def _outcomes(rows: Sequence[Row], other: Sequence[Row]) -> list[str]:
    """On how many tasks `other` is better, worse and equal."""
    first, second = _by_task(rows), _by_task(other)
    signs = [np.sign(np.mean(second[task]) - np.mean(first[task])) for task in first.keys() & second.keys()]
    return [str(signs.count(sign)) for sign in (1, -1, 0)]


def _by_task(rows: Sequence[Row]) -> dict[str, list[bool]]:
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row["end"] != "broken":
            outcomes[row["task_id"]].append(row["end"] == "success")
    return outcomes


def _successes_by_task(rows: Sequence[Row]) -> list[list[bool]]:
    return list(_by_task(rows).values())


def _wilson(rate: float, n: float) -> tuple[float, float]:
    """Wilson's score interval (1927) for a rate seen in `n` trials, where `n` need not be whole."""
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    center = (rate + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(center - reach, 0.0), min(center + reach, 1.0)
