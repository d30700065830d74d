"""The report's tables, as data: what was run, the post's (main results, success by depth, behaviour, cost) and the
comparisons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tinker_client.evaluation.cost import training_runs
from tinker_client.evaluation.episodes import Conditions
from tinker_client.evaluation.measures import Comparison, Measures, compare, measure
from tinker_client.evaluation.published import post_number
from tinker_client.evaluation.scope import Scope, TaskSet
from tinker_client.evaluation.statistics import Interval

Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class Column:
    """A column's name, and the format specification of its numbers.

    long: whether its texts may be broken anywhere to fit a terminal.
    """

    name: str
    format: str = ""
    long: bool = False


@dataclass(frozen=True)
class Row:
    """One cell a column; `post` holds the post's numbers for the same columns, None where it has none."""

    cells: tuple[Cell, ...]
    post: tuple[Cell, ...] | None = None


@dataclass(frozen=True)
class Table:
    """key: names its files. groups: the number of leading columns that are the same for all rows of a group."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str
    groups: int = 0


def tables(what: Scope) -> list[Table]:
    """Every table that has rows."""
    makers = (
        what_was_run, main_results, by_depth, behaviour, mistakes, comparison, turns_where_both_solve, training_cost,
    )  # fmt: skip
    return [table for make in makers if (table := make(what)).rows]


def what_was_run(what: Scope) -> Table:
    """One row an evaluation directory; those that were played with the same settings stand together."""
    by_setting: dict[tuple[Cell, ...], list[Row]] = {}
    for evaluation in what.evaluations:
        of = evaluation.conditions
        thinking = None if of.thinking is None else "on" if of.thinking else "off"
        played_with = (of.max_turns, of.temperature, of.max_reply_tokens, thinking)
        for directory in evaluation.directories:
            commits = ", ".join(directory.commits) or None
            cells = (evaluation.name, *_weights(of), of.rollouts, commits, str(directory.path))
            by_setting.setdefault(played_with, []).append(Row((*played_with, *cells)))
    columns = (
        Column("turns"), Column("temperature", "g"), Column("reply tokens"), Column("thinking"),
        Column("model"), Column("base model"), Column("state", long=True), Column("rollouts"),
        Column("commit", long=True), Column("directory", long=True),
    )  # fmt: skip
    note = (
        "turns, reply tokens: the most that an episode and a reply could have. rollouts: episodes of each task. "
        "commit: of this project, at each start; + with changes that were not committed."
    )
    left_out = [e.name for e in what.evaluations if not what.budgets_of(e)]
    if left_out:
        note += f" In no other table, since it had fewer turns than they are about: {', '.join(left_out)}."
    rows = tuple(row for together in by_setting.values() for row in together)
    return _without_empty_columns(Table("what_was_run", "What was run", columns, rows, note, 4))


def main_results(what: Scope) -> Table:
    """Success and pass@k on each set of tasks."""
    pass_at_k: list[_Measure] = []
    note = f"success: share of all episodes, with its 95 % interval. {_CEILING_NOTE}"
    if what.k > 1:
        pass_at_k = [
            (f"pass@{what.k}", ".3f", lambda m: m.pass_at_k),
            ("over", "d", lambda m: m.pass_at_k_tasks if m.pass_at_k_tasks < m.tasks or m.pass_at_k_without else None),
        ]
        note += _left_out_of_pass_at_k(what)
    columns: list[_Measure] = [_SUCCESS, *pass_at_k, _CEILING, *_COUNTS]
    return _of_measures(what, what.sets, columns, key="main_results", title="Success", note=note)


def by_depth(what: Scope) -> Table:
    """Success on the tasks of each depth, where there are several."""
    note = f"depth: crafting layers between the raw materials and the target. {_CEILING_NOTE}"
    sets = what.depths if len(what.depths) > 1 else ()
    columns = [_SUCCESS, _CEILING, *_COUNTS]
    return _of_measures(what, sets, columns, key="success_by_depth", title="Success by depth", note=note)


def behaviour(what: Scope) -> Table:
    """What an episode is like."""
    columns: list[_Measure] = [
        ("turns", ".1f", lambda m: m.turns),
        ("failed crafts", ".1f", lambda m: m.failed_crafts),
        ("median failed", "g", lambda m: m.failed_crafts_median),
        ("repeated", ".1f", lambda m: m.repeated_failed_crafts),
        ("median repeated", "g", lambda m: m.repeated_failed_crafts_median),
        ("invalid turns", ".1f", lambda m: m.invalid_turns),
        ("cut-off replies", ".2f", lambda m: m.cut_off_replies),
    ]
    note = (
        "Per episode: means, and the medians of failed and of repeated failed crafts. repeated: failed crafts that had "
        "failed before in the episode, as the same call."
    )
    return _of_measures(what, what.sets, columns, key="behaviour", title="What an episode is like", note=note)


def mistakes(what: Scope) -> Table:
    """How many episodes make a mistake, and come out of it."""
    columns: list[_Measure] = [
        ("with a cut-off reply", "d", lambda m: m.with_cut_off_reply),
        ("with a failed craft", "d", lambda m: m.with_failed_craft),
        ("recovered", "d", lambda m: m.recovered),
        ("episodes", "d", lambda m: m.episodes),
    ]
    note = "Episodes with at least one. recovered: those with a failed craft that still succeed."
    return _of_measures(what, what.sets, columns, key="mistakes", title="Episodes with mistakes", note=note)


def comparison(what: Scope) -> Table:
    """Every pair of models, task by task."""
    columns: list[_Compared] = [
        ("difference", "+.3f", lambda c: c.difference),
        ("better", "d", lambda c: c.better),
        ("worse", "d", lambda c: c.worse),
        ("equal", "d", lambda c: c.equal),
    ]
    note = "difference: of the success rates, paired over tasks, with its 95 % interval. better, worse, equal: tasks."
    title = "Differences in success over the tasks that both played"
    return _of_comparisons(what, columns, key="comparison", title=title, note=note)


def turns_where_both_solve(what: Scope) -> Table:
    """Every pair of models, on the tasks that both solve."""
    columns: list[_Compared] = [
        ("tasks", "d", lambda c: c.both_solve or None),
        ("turns (left)", ".1f", lambda c: c.turns[1]),
        ("turns (right)", ".1f", lambda c: c.turns[0]),
        ("difference", "+.1f", lambda c: c.turns_difference),
    ]
    note = "Mean over tasks of the turns of the episodes that succeed, and the paired difference with its interval."
    title = "Turns on the tasks that both solve"
    return _of_comparisons(what, columns, key="turns_where_both_solve", title=title, note=note)


def training_cost(what: Scope) -> Table:
    """The tokens with a loss of the runs that made each model."""
    rows = []
    played_as_the_post = any(tasks.key for tasks in what.sets)  # else its costs are of something else
    for evaluation in what.evaluations:
        runs = training_runs(evaluation.conditions.source, evaluation.conditions.state)
        if runs:
            own, before = runs[0], runs[1:]
            total = sum(run.trained for run in runs)
            sampled = sum(run.sampled for run in runs)
            cells = (evaluation.name, total, own.trained, sum(r.trained for r in before) or None, own.steps, sampled)
            said = post_number(evaluation.name, "training", 0, "tokens trained") if played_as_the_post else None
            rows.append(Row(cells, None if said is None else (None, said, *[None] * 4)))
    names = ("tokens trained", "in its own run", "in the runs before", "own steps", "tokens sampled")
    columns = (Column("model"), *(Column(name, ",d") for name in names))
    note = (
        "tokens trained: those with a loss, of the run and of what it started from. tokens sampled: all that the "
        "policy wrote in GRPO; groups whose episodes all end alike are sampled but not trained on."
    )
    return _without_empty_columns(Table("training_cost", "Training cost", columns, tuple(rows), note))


_Measure = tuple[str, str, Callable[[Measures], Cell]]
_Compared = tuple[str, str, Callable[[Comparison], Cell]]
_SOME = "of these"
_NAMED = 8  # tasks that a note names
_CEILING_NOTE = (
    "ceiling: share of the model's tasks that an ideal run which asks only for names it has seen solves within the "
    "turns. Who guesses names, or knows recipes by heart, saves look-ups and can get above it."
)
_SUCCESS: _Measure = ("success", ".3f", lambda m: m.success)
_CEILING: _Measure = ("ceiling", ".3f", lambda m: m.ceiling)
_COUNTS: list[_Measure] = [
    ("episodes", "d", lambda m: m.episodes),
    ("broken", "d", lambda m: m.broken or None),
    ("of all", ".3f", lambda m: m.success_of_all if m.broken else None),
]


def _of_measures(
    what: Scope,
    sets: Sequence[TaskSet],
    measures: Sequence[_Measure],
    *,
    key: str,
    title: str,
    note: str,
) -> Table:
    rows = []
    for tasks, turns in ((tasks, turns) for tasks in sets for turns in what.budgets):
        for evaluation in what.evaluations:
            if turns in what.budgets_of(evaluation):
                of = measure(evaluation, tasks.tasks, turns, what.k)
                if of.episodes or of.broken:
                    some = of.tasks if of.tasks < len(tasks.tasks) else None  # then the post's number is of others
                    key_of_post = tasks.key if some is None else None
                    post = {name: post_number(evaluation.name, key_of_post, turns, name) for name, _, _ in measures}
                    cells = [some, *(get(of) for _, _, get in measures)]
                    rows.append(_row((tasks.label, turns), evaluation.name, cells, {_SOME: None, **post}))
    names = (Column("tasks"), Column("turns"), Column("model"), Column(_SOME, "d"))
    columns = (*names, *(Column(name, style) for name, style, _ in measures))
    return _without_empty_columns(Table(key, title, columns, tuple(rows), note, 2))


def _of_comparisons(what: Scope, measures: Sequence[_Compared], *, key: str, title: str, note: str) -> Table:
    rows = []
    for tasks, turns in ((tasks, turns) for tasks in what.sets for turns in what.budgets):
        able = [evaluation for evaluation in what.evaluations if turns in what.budgets_of(evaluation)]
        for first, second in combinations(able, 2):
            between = compare(first, second, tasks.tasks, turns)
            cells = [get(between) for _, _, get in measures]
            if between.tasks and cells[0] is not None:
                name = f"{second.name} - {first.name}"
                key_of_post = tasks.key if between.tasks == len(tasks.tasks) else None
                post = {measure: post_number(name, key_of_post, turns, measure) for measure, _, _ in measures}
                rows.append(_row((tasks.label, turns), name, cells, post))
    names = (Column("tasks"), Column("turns"), Column("models"))
    columns = (*names, *(Column(name, style) for name, style, _ in measures))
    return _without_empty_columns(Table(key, title, columns, tuple(rows), note, 2))


def _weights(of: Conditions) -> tuple[str | None, str | None]:
    """What the base model is called, and the state that was loaded on it."""
    if of.player != "model":
        return of.player, None
    return of.model, of.state or of.source or "untrained"


def _left_out_of_pass_at_k(what: Scope) -> str:
    """What the note of pass@k says of the tasks that it leaves out because the server failed episodes of them."""
    everything = frozenset(task for tasks in what.sets for task in tasks.tasks)
    parts = []
    for evaluation in what.evaluations:
        tasks = measure(evaluation, everything, evaluation.max_turns, what.k).pass_at_k_without
        if tasks:
            more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
            parts.append(f"{evaluation.name} {', '.join(tasks[:_NAMED])}{more}")
    return f" Not in pass@{what.k}, since episodes broke: {'; '.join(parts)}." if parts else ""


def _row(group: tuple[Cell, ...], name: str, cells: Sequence[Cell], post: Mapping[str, float | None]) -> Row:
    said: tuple[Cell, ...] | None = (*[None] * (len(group) + 1), *post.values())
    says_something = any(value is not None for measure, value in post.items() if measure != "episodes")
    return Row((*group, name, *cells), said if says_something else None)


def _without_empty_columns(table: Table) -> Table:
    """The table, with what its note must explain of the columns and rows that are left."""
    kept = [i for i in range(len(table.columns)) if any(row.cells[i] is not None for row in table.rows)]

    def pick(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        return tuple(cells[i] for i in kept)

    columns = tuple(table.columns[i] for i in kept)
    rows = tuple(Row(pick(row.cells), pick(row.post) if row.post else None) for row in table.rows)
    note = table.note
    if any(column.name == "broken" for column in columns):
        note += " broken: episodes that the server failed, left out. of all: the rate if they all had failed."
    if any(column.name == "over" for column in columns):
        note += " over: how many tasks pass@k is over, where some have fewer than k episodes."
    if any(column.name == _SOME for column in columns):
        note += f" {_SOME}: how many of the tasks the model has played, where it is not all."
    if any(row.post for row in rows):
        note += " post: what the post says of its model of the same name (Qwen3.5-4B)."
    return Table(table.key, table.title, columns, rows, note, sum(i < table.groups for i in kept))
