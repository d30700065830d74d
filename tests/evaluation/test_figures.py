"""The report's pictures: what is drawn is what the statistics say, the same everywhere for a model."""

import json
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.made_up import FIT_75, HARD, quarter
from tinker_client.evaluation.figures import (
    pictures,
    success_by_budget,
    success_by_cost,
    success_by_depth,
    training_curves,
)
from tinker_client.evaluation.measures import measure
from tinker_client.evaluation.scope import scope


def lines(figure: Figure, axes: int = 0) -> dict:
    return {line.get_label(): line for line in figure.axes[axes].get_lines() if not line.get_label().startswith("_")}


def test_success_by_budget_draws_each_budget_and_the_ceiling():
    model = quarter("sft", HARD, skill=0.5)
    what = scope([model])
    figure = success_by_budget(what).figure
    assert [axes.get_title() for axes in figure.axes] == [tasks.label for tasks in what.sets]
    for number, tasks in enumerate(what.sets):
        drawn = lines(figure, number)
        for budget in (1, 60, 75, 149, 150):
            of = measure(model, tasks.tasks, budget, k=1)
            assert drawn["sft"].get_ydata()[budget - 1] == pytest.approx(of.success.value)
            assert drawn["ceiling (ideal run)"].get_ydata()[budget - 1] == pytest.approx(of.ceiling)
        assert "turns" in figure.axes[number].get_xlabel()


def test_a_model_looks_the_same_everywhere_and_differs_from_the_others_in_grey():
    what = scope([quarter(name, HARD, skill=skill) for name, skill in (("a", 0.1), ("b", 0.5), ("c", 0.9))])
    by_budget, by_depth = lines(success_by_budget(what).figure), success_by_depth(what).figure.axes[0]
    at_depth = {bars.get_label(): bars.lines[0] for bars in by_depth.containers}
    for name in "abc":
        assert by_budget[name].get_color() == at_depth[name].get_color()
    assert len({by_budget[name].get_linestyle() for name in "abc"}) == 3
    assert len({at_depth[name].get_marker() for name in "abc"}) == 3
    assert len({to_rgb(by_budget[name].get_color()) for name in "abc"}) == 3


@pytest.fixture
def trained(tmp_path: Path) -> str:
    run = tmp_path / "runs" / "grpo"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"run_format": 1, "flags": {"init": None}}))
    rows = [
        {"step": step, "tokens/trained": 2e6, "success/depth_4": step / 10, "success/depth_5": None, "group/mixed": 3}
        for step in (1, 2, 3)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "checkpoints.jsonl").write_text(json.dumps({"step": 3, "state_path": "x"}) + "\n")
    return str(run)


def test_training_curves_and_cost_come_from_the_runs_metrics(trained: str):
    model = quarter("grpo", FIT_75, skill=0.5, source=trained)
    what = scope([model, quarter("base", FIT_75, skill=0.25)])
    (curves,) = training_curves(what)
    assert curves.key == "training_grpo"
    assert {axes.get_title() for axes in curves.figure.axes} == {"Success by depth", "Groups to learn from"}
    (depth_4,) = curves.figure.axes[0].get_lines()
    assert (list(depth_4.get_xdata()), list(depth_4.get_ydata())) == ([1, 2, 3], [0.1, 0.2, 0.3])
    cost = success_by_cost(what)
    points = {bars.get_label(): bars.lines[0].get_xydata()[0].tolist() for bars in cost.figure.axes[0].containers}
    assert points == {"grpo": [6.0, 0.5], "base": [0.0, 0.25]}
    assert success_by_cost(scope([quarter("base", FIT_75, skill=0.25)])) is None


def test_a_model_with_fewer_turns_is_named_where_it_cannot_be_shown():
    what = scope([quarter("short", FIT_75, skill=0.5, max_turns=40), quarter("long", FIT_75, skill=0.5)])
    assert "(not shown: short had 40)" in success_by_depth(what).title
    assert "not shown" not in success_by_budget(what).title
    assert {"short", "long"} <= lines(success_by_budget(what).figure).keys()


def test_the_legend_stays_inside_the_picture():
    names = ["base", "grpo", "sft", "sft_grpo", "a model with quite a long name"]
    figure = success_by_budget(scope([quarter(name, FIT_75, skill=0.5) for name in names])).figure
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_the_files_are_the_same_every_time_and_text_stays_text():
    what = scope([quarter("a <b> & c", FIT_75, skill=0.5)])
    first, second = ([picture.encode("svg") for picture in pictures(what)] for _ in range(2))
    assert first == second
    assert b"a &lt;b&gt; &amp; c" in first[0]
    assert pictures(what)[0].encode("png").startswith(b"\x89PNG")
