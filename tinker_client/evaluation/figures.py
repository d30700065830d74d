"""The report's pictures. A model has the same colour, line style and marker everywhere, which grey tells apart too.

matplotlib is used through its figure objects, without pyplot: no window, no global state.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tinker_client.evaluation.cost import RunCost, training_runs
from tinker_client.evaluation.episodes import Evaluation, fits
from tinker_client.evaluation.measures import ceiling, outcomes_by_task
from tinker_client.evaluation.scope import Scope, TaskSet
from tinker_client.evaluation.statistics import Interval, success_rate
from tinker_client.run.jsonl import read_rows

# Okabe and Ito's palette, told apart with colour-blind eyes, in an order in which neighbours differ in grey as well.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9")
_LINES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"
_CEILING, _CEILING_LABEL = "0.45", "ceiling (ideal run)"
_IDEAL_RUN = "The ideal run asks only for names it has seen"

_CURVES = (
    ("Success by depth", "success rate", "success/depth_"),
    ("Groups to learn from", "mixed groups per step", "group/mixed"),
    ("Failed crafts", "per episode", "episode/failed_crafts"),
    ("Invalid turns", "per episode", "episode/invalid_turns"),
    ("Entropy of the policy", "nats per token", "policy/entropy"),
    ("KL of sampler to trainer", "nats per token", "policy/kl_sampler_trainer"),
    ("Staleness", "optimizer steps, mean", "staleness/mean"),
    ("Loss", "nats per token", "loss/"),
)


@dataclass(frozen=True)
class Picture:
    """key: names its files. title: says what it shows, for those who cannot see it too."""

    key: str
    title: str
    figure: Figure

    def encode(self, kind: Literal["png", "svg"]) -> bytes:
        """The picture's file. The same picture gives the same bytes."""
        out = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with _deterministic():
            self.figure.savefig(out, format=kind, dpi=150, metadata=metadata)
        return out.getvalue()


def pictures(what: Scope) -> list[Picture]:
    """Every picture that there is something to show on."""
    found = [success_by_budget(what), success_by_depth(what), success_by_cost(what)]
    return [picture for picture in found if picture is not None] + list(training_curves(what))


def success_by_budget(what: Scope) -> Picture:
    """Success against the turns allowed, from 1 to the budget played, on each set of tasks."""
    figure, all_axes = _axes(len(what.sets))
    for axes, tasks in zip(all_axes, what.sets, strict=True):
        longest = max(evaluation.max_turns for evaluation in what.evaluations)
        budgets = np.arange(1, longest + 1)
        if all(fits(task, 1) is not None for task in tasks.tasks):
            ceilings = [ceiling(tasks.tasks, int(budget)) or 0.0 for budget in budgets]
            axes.step(budgets, ceilings, where="post", color=_CEILING, linewidth=1, label=_CEILING_LABEL)
        for number, evaluation in enumerate(what.evaluations):
            own = budgets[: evaluation.max_turns]
            rates = [_success(evaluation, tasks, int(budget)) for budget in own]
            if rates[-1] is None:
                continue
            shown = [rate for rate in rates if rate is not None]
            axes.step(own, [rate.value for rate in shown], where="post", label=evaluation.name, **_line(number))
            low, high = [rate.low for rate in shown], [rate.high for rate in shown]
            axes.fill_between(own, low, high, step="post", color=_colour(number), alpha=0.12, linewidth=0)
        axes.set(title=tasks.label, xlabel="turns allowed", xlim=(0, 1.02 * longest))
        _rate_axis(axes)
    _legend(figure, all_axes)
    title = f"Success against the turns allowed, with 95 % intervals. {_IDEAL_RUN}"
    return Picture("success_by_budget", title, figure)


def success_by_depth(what: Scope) -> Picture:
    """Success at each depth within the longest budget."""
    budget = what.budgets[-1]
    figure, (axes,) = _axes(1, wide=True)
    able = [(i, e) for i, e in enumerate(what.evaluations) if e.max_turns >= budget]
    width = 0.8 / max(len(able), 1)
    for place, (number, evaluation) in enumerate(able):
        offset = (place - (len(able) - 1) / 2) * width
        found = [(x, rate) for x, d in enumerate(what.depths) if (rate := _success(evaluation, d, budget)) is not None]
        positions = [x + offset for x, _ in found]
        _points(axes, positions, [rate for _, rate in found], number, evaluation.name)
    for x, depth in enumerate(what.depths):
        if (highest := ceiling(depth.tasks, budget)) is not None:
            axes.hlines(highest, x - 0.45, x + 0.45, color=_CEILING, linewidth=1, label=_CEILING_LABEL)
    axes.set_xticks(range(len(what.depths)), [f"{d.depths[0]}\n({len(d.tasks)} tasks)" for d in what.depths])
    axes.set(title=f"within {budget} turns", xlabel="depth of the task", xlim=(-0.5, len(what.depths) - 0.5))
    _rate_axis(axes)
    _legend(figure, [axes])
    title = f"Success by depth within {budget} turns, with 95 % intervals{_left_out(what)}. {_IDEAL_RUN}"
    return Picture("success_by_depth", title, figure)


def success_by_cost(what: Scope) -> Picture | None:
    """Success within the longest budget against the tokens trained on; None if no model's cost is known."""
    costs: dict[int, float] = {}
    for number, evaluation in enumerate(what.evaluations):
        runs = _training_runs(evaluation)
        if runs is not None and evaluation.conditions.player == "model":
            costs[number] = sum(run.trained for run in runs) / 1e6
    if not any(costs.values()):
        return None
    budget = what.budgets[-1]
    figure, all_axes = _axes(len(what.sets))
    for axes, tasks in zip(all_axes, what.sets, strict=True):
        for number, cost in costs.items():
            evaluation = what.evaluations[number]
            rate = _success(evaluation, tasks, budget) if evaluation.max_turns >= budget else None
            if rate is not None:
                _points(axes, [cost], [rate], number, evaluation.name)
        axes.set(title=tasks.label, xlabel="tokens trained on, millions (all its runs)")
        axes.margins(x=0.1)
        _rate_axis(axes)
    _legend(figure, all_axes)
    title = f"Success within {budget} turns against the tokens trained on{_left_out(what)}"
    return Picture("success_by_cost", title, figure)


def training_curves(what: Scope) -> Iterator[Picture]:
    """The metrics of each run that made one of the models, step by step."""
    directories = {run.run_dir: None for e in what.evaluations for run in _training_runs(e) or [] if run.steps > 0}
    for number, directory in enumerate(directories):
        rows = read_rows(directory / "metrics.jsonl")
        curves = [(title, unit, found) for title, unit, name in _CURVES if (found := _series(rows, name))]
        if curves:
            same_name = any(other.name == directory.name for other in directories if other != directory)
            key = f"training_{directory.name}" + (f"_{number}" if same_name else "")
            yield Picture(key, f"Training of {directory}", _curves(directory, curves))


def _curves(directory: Path, curves: Sequence[tuple[str, str, Mapping[str, tuple[list[int], list[float]]]]]) -> Figure:
    figure, all_axes = _axes(len(curves), columns=4)
    for axes, (title, unit, found) in zip(all_axes, curves, strict=True):
        for number, (name, (steps, values)) in enumerate(found.items()):
            axes.plot(steps, values, label=name, marker="." if len(steps) < 40 else "", **_line(number))
        axes.set(title=title, xlabel="optimizer step", ylabel=unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        if len(found) > 1:
            axes.legend(frameon=False, fontsize="small")
    figure.suptitle(f"Training of {directory.name}")
    return figure


def _series(rows: Sequence[Mapping[str, float | None]], prefix: str) -> dict[str, tuple[list[int], list[float]]]:
    """The metric called `prefix`, or those that begin with it if it ends like a prefix: label -> steps, values."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if (name == prefix or (name.startswith(prefix) and prefix[-1] in "/_")) and value is not None:
                label = "depth " + name.removeprefix(prefix) if prefix.endswith("depth_") else name.split("/")[-1]
                steps, values = found.setdefault(label.replace("_", " "), ([], []))
                steps.append(int(row["step"] or 0))
                values.append(value)
    return dict(sorted(found.items()))


def _training_runs(evaluation: Evaluation) -> list[RunCost] | None:
    return training_runs(evaluation.conditions.source, evaluation.conditions.state)


def _left_out(what: Scope) -> str:
    """Which evaluations had fewer turns than the longest budget, for the title of a picture of that budget."""
    short = [f"{e.name} had {e.max_turns}" for e in what.evaluations if e.max_turns < what.budgets[-1]]
    return f" (not shown: {', '.join(short)})" if short else ""


def _success(evaluation: Evaluation, tasks: TaskSet, budget: int) -> Interval | None:
    outcomes = outcomes_by_task([e for e in evaluation.episodes if e.task_id in tasks.tasks], budget)
    return success_rate(list(outcomes.values())) if outcomes else None


def _points(axes: Axes, x: Sequence[float], rates: Sequence[Interval], number: int, label: str) -> None:
    values = [rate.value for rate in rates]
    bars = [[rate.value - rate.low for rate in rates], [rate.high - rate.value for rate in rates]]
    axes.errorbar(
        x,
        values,
        yerr=np.abs(bars),
        label=label,
        color=_colour(number),
        marker=_MARKERS[number % len(_MARKERS)],
        linestyle="none",
        capsize=3,
    )


def _axes(count: int, *, columns: int = 3, wide: bool = False) -> tuple[Figure, list[Axes]]:
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = Figure(figsize=((8.0 if wide else 4.2) * columns + 0.6, 3.2 * lines + 0.8), layout="constrained")
    all_axes = [figure.add_subplot(lines, columns, number + 1) for number in range(count)]
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize("medium")
    return figure, all_axes


def _rate_axis(axes: Axes) -> None:
    axes.set(ylabel="success rate", ylim=(-0.03, 1.03))
    axes.grid(axis="y", alpha=0.25)


def _legend(figure: Figure, all_axes: Sequence[Axes]) -> None:
    named: dict[str, Artist] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(str(label), handle)
    if named:
        inches_each = 0.7 + 0.09 * max(map(len, named))  # the line, the gaps, and the longest name in the default font
        columns = max(1, int(figure.get_figwidth() / inches_each))
        figure.legend(named.values(), list(named), loc="outside lower center", ncols=columns, frameon=False)


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _line(number: int) -> dict[str, Any]:
    return {"color": _colour(number), "linestyle": _LINES[number % len(_LINES)]}


def _deterministic() -> AbstractContextManager[None]:
    """Names in an SVG come from a salt, which is random by default. Its text stays text, so that it can be found."""
    return rc_context({"svg.hashsalt": "textcraft-rl", "svg.fonttype": "none"})
