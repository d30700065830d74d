"""The post's figures that need no model, and the command that prints them."""

import io
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

from textcraft import Episode, load_tasks
from textcraft.facts import facts, ideal_run, print_facts
from textcraft.oracle import advise
from textcraft.tools import render


@pytest.fixture(scope="module")
def figures():
    return facts()


def test_the_hard_tasks_of_the_post(figures):
    by_depth = figures["val"]["by_depth"]
    assert [by_depth[depth]["tasks"] for depth in ("7", "8", "9")] == [46, 46, 44]
    assert [by_depth[depth]["fit_75"] for depth in ("7", "8", "9")] == [40, 4, 0]
    hard = figures["val"]["by_difficulty"]["hard"]
    assert (hard["tasks"], hard["fit_75"], hard["ideal_turns_median_fit_75"]) == (136, 44, 65)


def test_medium_tasks_have_a_median_of_17_crafts(figures):
    assert figures["val"]["by_difficulty"]["medium"]["crafts_median"] == 17


def test_every_task_is_counted_once_in_every_grouping(figures):
    for split in ("train", "val"):
        for group in ("by_difficulty", "by_depth"):
            for figure in ("tasks", "fit_75", "fit_150", "beyond_75", "beyond_150"):
                total = figures[split]["all"][figure]
                assert sum(row[figure] for row in figures[split][group].values()) == total
    assert figures["val"]["by_depth"]["7"]["ceiling_75"] == pytest.approx(40 / 46)


def test_an_ideal_run_is_what_the_expert_plays():
    for task in load_tasks("val", depths=[2, 5, 7])[::10]:
        run = ideal_run(task)
        episode, crafts = Episode(task, max_turns=run.turns), 0
        while episode.end is None:
            crafts += episode.step(render(advise(episode).call)).kind == "craft"
        assert (episode.end, episode.turns, crafts) == ("success", run.turns, run.crafts)


def test_the_command_prints_json_for_programs(figures):
    command = [sys.executable, "-m", "textcraft", "facts", "--json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == figures
    assert {"tasks", "crafts_median", "ideal_turns_median", "fit_75", "fit_150"} <= set(figures["val"]["by_depth"]["7"])


def test_the_tables_fit_a_terminal_and_warn_of_train_tasks_out_of_reach(figures):
    console = Console(width=80, file=io.StringIO())
    print_facts(figures, console)
    text = console.file.getvalue()
    hard = [ideal_run(task) for task in load_tasks("val", "hard")]
    assert f"{median(run.crafts for run in hard):g} (33-137)" in text and "44 (32%)" in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    late = sum(ideal_run(task).turns > 75 for task in load_tasks("train"))
    assert f"warning: {late} of the 2522 train tasks do not fit 75 turns" in " ".join(text.split())
