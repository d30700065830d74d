"""The report's measures and tables, on made-up episodes whose numbers are known."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

import evaluate
from tests.made_up import FIT_75, HARD, evaluation, quarter, row, write
from textcraft import load_tasks
from tinker_client.errors import UserError
from tinker_client.evaluation.cost import training_runs
from tinker_client.evaluation.episodes import load_evaluations, repeated_failed_crafts
from tinker_client.evaluation.measures import compare, measure
from tinker_client.evaluation.published import NUMBERS
from tinker_client.evaluation.render import print_tables, to_csv, to_html, to_markdown
from tinker_client.evaluation.scope import scope
from tinker_client.evaluation.tables import main_results, tables

REPOSITORY = Path(__file__).resolve().parents[2]


def test_every_measure_counts_what_it_says_and_up_to_the_budget_only():
    run = evaluation(
        [
            row("a", "success", "iffcfgcc", episode=0),
            row("a", "out_of_turns", "xXxiFFFFFFFF", episode=1),
            row("b", "success", "icc"),
            row("b", "broken", "i", episode=1),
            row("c", "wrong_finish", "Fc"),
        ]
    )
    whole = measure(run, {"a", "b", "c"}, 150, k=1)
    assert (whole.tasks, whole.episodes, whole.broken) == (3, 4, 1)
    assert whole.success.value == 0.5
    assert whole.success_of_all == pytest.approx(2 / 5)
    assert whole.pass_at_k.value == pytest.approx((0.5 + 1 + 0) / 3)
    assert whole.turns == (8 + 12 + 3 + 2) / 4
    assert (whole.failed_crafts, whole.failed_crafts_median) == ((4 + 8 + 0 + 1) / 4, 2.5)
    assert (whole.repeated_failed_crafts, whole.repeated_failed_crafts_median) == ((3 + 7) / 4, 1.5)
    assert (whole.invalid_turns, whole.cut_off_replies) == (3 / 4, (1 + 8 + 1) / 4)
    assert (whole.with_cut_off_reply, whole.with_failed_craft, whole.recovered) == (2, 3, 1)
    assert whole.action_tokens == 10 * whole.turns
    assert whole.ceiling is None  # these are no tasks of the benchmark
    short = measure(run, {"a", "b", "c"}, 3, k=1)
    assert short.success.value == 0.25
    assert short.turns == (3 + 3 + 3 + 2) / 4
    assert (short.failed_crafts, short.repeated_failed_crafts, short.recovered) == ((2 + 0 + 0 + 1) / 4, 0.25, 0)
    assert measure(run, {"a"}, 8, k=1).success.value == measure(run, {"a"}, 12, k=2).success.value == 0.5
    assert measure(run, {"a"}, 7, k=1).success.value == 0.0


def test_calls_in_a_models_thoughts_are_not_what_it_repeats():
    played_out = row("t", "out_of_turns", "fgf")
    for turn, thought in zip(played_out["turns"], ("finish()", "view_inventory()", "finish()"), strict=True):
        turn["reply"] = f"Maybe <tool>{thought}</tool>.\n</think>\n\n{turn['reply']}"
    assert repeated_failed_crafts(played_out) == (2, 3)


def test_no_episode_gives_no_number_but_the_broken_ones():
    of = measure(evaluation([row("a", "broken")]), {"a"}, 150, k=4)
    assert (of.episodes, of.broken) == (0, 1)
    assert math.isnan(of.success.value)
    assert math.isnan(of.turns)
    assert of.to_json()["turns"] is of.to_json()["success"]["value"] is None
    json.dumps(of.to_json(), allow_nan=False)


def test_two_models_are_compared_over_the_tasks_that_both_played():
    one = evaluation(
        [row("a", "success", "iccc"), row("b", "out_of_turns"), row("c", "success", "cc"), row("only one", "success")]
    )
    other = evaluation(
        [
            row("a", "success", "ic", episode=0),
            row("a", "success", "iccccc", episode=1),
            row("b", "success", "i"),
            row("c", "out_of_turns"),
            row("only other", "success"),
        ]
    )
    between = compare(one, other, {"a", "b", "c", "only one", "only other"}, 150)
    assert (between.tasks, between.better, between.worse, between.equal) == (3, 1, 1, 1)
    assert between.difference.value == 0.0
    assert (between.both_solve, between.turns) == (1, (4.0, 4.0))
    short = compare(one, other, {"a", "b", "c"}, 3)
    assert (short.better, short.worse, short.equal) == (2, 1, 0)
    assert short.difference.value == pytest.approx((0.5 + 1 - 1) / 3)


def test_one_evaluation_of_150_turns_gives_every_table_beside_the_posts_numbers():
    models = [quarter("sft", HARD, skill=0.25), quarter("sft_grpo", HARD, skill=0.5)]
    shown = {table.key: table for table in tables(scope(models))}
    assert list(shown) == [
        "main_results", "success_by_depth", "behaviour", "mistakes", "comparison", "turns_where_both_solve",
    ]  # fmt: skip
    main = shown["main_results"]
    assert [column.name for column in main.columns] == [
        "tasks", "turns", "model", "success", "pass@4", "ceiling", "episodes",
    ]  # fmt: skip
    groups = list(dict.fromkeys((*row.cells[:2], row.cells[5]) for row in main.rows))
    assert groups == [
        ("hard that fit 75 turns, depth 7-8 (44)", 75, 1.0),
        ("hard that fit 75 turns, depth 7-8 (44)", 150, 1.0),
        ("hard, depth 7-9 (136)", 75, 44 / 136),
        ("hard, depth 7-9 (136)", 150, 1.0),
    ]
    said = {(row.cells[1], row.cells[2]): row.post[3:5] for row in main.rows if row.post}
    assert said == {(75, "sft"): (0.142, 0.25), (75, "sft_grpo"): (0.193, None), (150, "sft_grpo"): (0.511, None)}
    assert len({row.cells[0] for row in shown["success_by_depth"].rows}) == 3
    (better,) = [row for row in shown["comparison"].rows if row.post]
    assert better.cells[1:3] == (75, "sft_grpo - sft")
    assert better.post[4:6] == (11, 6)
    mistakes = {(row.cells[1], row.cells[2]): row.post[3:] for row in shown["mistakes"].rows if row.post}
    assert mistakes[150, "sft"] == (None, 166, 55, 176)
    assert mistakes[75, "sft"] == (6, None, 17, 176)


def test_the_posts_numbers_stand_beside_the_same_thing_only():
    for tasks, name in ((FIT_75[:43], "sft"), (FIT_75, "mine"), (load_tasks("val", depths=[4, 5]), "sft")):
        assert not any(row.post for row in main_results(scope([quarter(name, tasks, skill=0.5)])).rows)
    assert any(row.post for row in main_results(scope([quarter("sft", FIT_75, skill=0.5)])).rows)
    medium = main_results(scope([quarter("base", load_tasks("val", "medium"), skill=0.5)]))
    assert [(row.cells[1], row.post and row.post[3]) for row in medium.rows] == [(75, 0.163), (150, None)]
    of_train = scope([quarter("base", load_tasks("train", "medium"), skill=0.5)])
    assert not any(row.post for table in tables(of_train) for row in table.rows)


def test_a_model_that_played_some_of_the_tasks_says_so_and_has_their_ceiling():
    models = [quarter("base", HARD, skill=0.5), quarter("sft", FIT_75, skill=0.5)]
    main = main_results(scope(models, budgets=[75]))
    assert [column.name for column in main.columns[3:]] == ["of these", "success", "pass@4", "ceiling", "episodes"]
    rows = {row.cells[2]: (row.cells[3], row.cells[6]) for row in main.rows if row.cells[0] == "hard, depth 7-9 (136)"}
    assert rows == {"base": (None, pytest.approx(44 / 136)), "sft": (44, 1.0)}
    models = [quarter("sft", FIT_75, skill=0.5), quarter("sft_grpo", FIT_75[:5], skill=0.5)]
    (compared,) = [table for table in tables(scope(models, budgets=[75])) if table.key == "comparison"]
    assert not any(row.post for row in compared.rows)


def test_every_number_of_the_post_has_its_words():
    numbers = json.loads(NUMBERS.read_text())["numbers"]
    assert all(row["quote"] and set(row) == {"model", "tasks", "turns", "measure", "value", "quote"} for row in numbers)
    for number in numbers:
        text = number["quote"].replace("%", "")
        value = number["value"]
        written = {f"{value:g}", f"{value:.2f}", f"{100 * value:g}", f"{100 * value:.1f}", f"{value / 1e6:g}M"}
        assert any(form in text for form in written), number


def test_a_budget_that_was_not_played_is_not_reported():
    short = quarter("short", FIT_75, skill=0.5, max_turns=40)
    long = quarter("long", FIT_75, skill=0.5)
    rows = main_results(scope([short, long])).rows
    assert [row.cells[1:3] for row in rows] == [(40, "short"), (40, "long"), (75, "long"), (150, "long")]
    assert {row.cells[1] for row in main_results(scope([short])).rows} == {40}
    assert {row.cells[1] for row in main_results(scope([long], budgets=[10, 60])).rows} == {10, 60}
    with pytest.raises(UserError, match="no evaluation was played with 200 turns"):
        scope([short, long], budgets=[75, 200])


def test_the_cost_follows_a_run_to_the_one_it_started_from(tmp_path: Path):
    def training_run(name: str, init: str | None, trained: Sequence[int], checkpoint: int | None) -> str:
        run = tmp_path / name
        run.mkdir()
        (run / "config.json").write_text(json.dumps({"run_format": 1, "flags": {"init": init}}))
        rows = [
            {"step": i + 1, "tokens/trained": n, "tokens/action": 2 * n, "time/train": 1.5}
            for i, n in enumerate(trained)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": 99}]))
        if checkpoint:
            (run / "checkpoints.jsonl").write_text(json.dumps({"step": checkpoint, "state_path": "x"}) + "\n")
        return str(run)

    sft = training_run("sft", None, [100, 50, 7], checkpoint=2)  # what came after the checkpoint is not in the model
    grpo = training_run("grpo", sft, [1000, 2000], checkpoint=99)
    runs = training_runs(grpo)
    assert [(Path(run.run_dir).name, run.trained, run.sampled, run.steps) for run in runs] == [
        ("grpo", 3000, 6000, 3),
        ("sft", 150, 300, 2),
    ]
    trained = [run.trained for run in training_runs(grpo, "tinker://m/weights/step_000001")]
    assert trained == [1000, 150]  # the run went on after what was evaluated
    assert training_runs(None) == []
    assert training_runs("tinker://m/weights/x") is training_runs(str(tmp_path / "gone")) is None
    for tasks, said in ((FIT_75, (None, 37_600_000)), (FIT_75[:9], None)):
        models = [quarter("grpo", tasks, skill=0.5, source=grpo), quarter("base", tasks, skill=0.5)]
        (cost,) = [table for table in tables(scope(models)) if table.key == "training_cost"]
        assert [row.cells[:4] for row in cost.rows] == [("grpo", 3150, 3000, 150)]
        assert (cost.rows[0].post and cost.rows[0].post[:2]) == said


def test_directories_of_one_name_are_one_model(tmp_path: Path):
    one = write(tmp_path / "one", [row("a", "success"), row("b", "out_of_turns")])
    two = write(tmp_path / "two", [row("c", "success"), row("b", "broken", episode=1)])
    (sft,) = load_evaluations([f"sft={one}", f"sft={two}"])
    assert (sft.name, len(sft.episodes), sft.broken, sft.max_turns) == ("sft", 3, ("b",), 150)
    assert [e.name for e in load_evaluations([str(one), str(two)])] == ["one", "two"]
    again = write(tmp_path / "other" / "one", [row("a", "success")], checkpoint="runs/sft")
    assert [e.name for e in load_evaluations([str(one), str(again)])] == [str(one), str(again)]
    with pytest.raises(UserError, match="two directories of sft hold task a"):
        load_evaluations([f"sft={one}", f"sft={again}"])
    with pytest.raises(UserError, match="holds no episodes"):
        load_evaluations([str(one)], depths=[2])


def test_an_episode_that_broke_and_was_played_again_counts_once(tmp_path: Path):
    path = write(tmp_path / "run", [row("a", "broken"), row("b", "success"), row("a", "success", "iccc")])
    (run,) = load_evaluations([str(path)])
    assert sorted((e.task_id, e.turns) for e in run.episodes) == [("a", 4), ("b", 2)]
    assert run.broken == ()


def test_a_name_can_be_anything_in_every_format(tmp_path: Path):
    name = "[bold]a|b<script>"
    table = main_results(scope([quarter(name, FIT_75, skill=0.5)]))
    console = Console(width=100, file=io.StringIO())
    print_tables([table], console)
    assert name in console.file.getvalue()
    assert "a\\|b" in to_markdown([table])
    assert "<script>" not in to_html(table)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert {row["model"] for row in rows} == {name}
    assert [float(row["success"]) for row in rows] == [0.5, 0.5]
    assert all(float(row["success low"]) < 0.5 < float(row["success high"]) for row in rows)


def test_the_tables_fit_a_terminal_of_80_columns():
    models = [quarter(name, HARD, skill=0.3) for name in ("base", "grpo", "sft", "sft_grpo")]
    console = Console(width=80, file=io.StringIO())
    print_tables(tables(scope(models)), console)
    text = console.file.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert text.count("0.301 [0.231, 0.383]") == len(models)  # 41 of 136 tasks, each four times


def test_the_report_command_needs_the_episodes_only(tmp_path: Path, capsys):
    rows = [row(task.id, "success", "f" + "c" * 50, depth=task.depth) for task in FIT_75[:6]]
    base = write(tmp_path / "base", [r | {"end": "out_of_turns"} for r in rows])
    sft = write(tmp_path / "sft", rows)
    evaluate.report(evaluate.ReportConfig(evaluations=(str(base), str(sft)), depths=(7, 8)))
    out = capsys.readouterr().out
    assert "sft - base" in out
    assert "+1.000" in out
    assert "base is not finished" in " ".join(out.split())
    (base / "summary.json").touch()
    (sft / "summary.json").touch()
    evaluate.report(evaluate.ReportConfig(evaluations=(str(base),), budgets=(60, 10, 60)))
    out = capsys.readouterr().out
    assert "not finished" not in out
    assert out.index("turns 10") < out.index("turns 60")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "sft"]
    with pytest.raises(UserError, match="every episode of broken broke"):
        load_evaluations([str(write(tmp_path / "broken", [row("a", "broken")]))])


def test_results_of_the_first_format_are_still_reported_on(monkeypatch):
    monkeypatch.chdir(REPOSITORY)  # the paths in their config.json start here
    names = ("base", "sft", "sft_grpo")
    models = load_evaluations([f"{name}=results/smollm2/eval/{name}-easy" for name in names])
    assert [measure(model, {e.task_id for e in model.episodes}, 12, k=1).success.value for model in models] == [
        0,
        9 / 24,
        8 / 24,
    ]
    shown = {table.key: table for table in tables(scope(models))}
    assert {row.cells[2] for row in shown["main_results"].rows} == set(names)
    grpo, sft = training_runs(models[2].conditions.source, models[2].conditions.state)
    assert [(run.run_dir.name, run.steps, run.trained) for run in (grpo, sft)] == [
        ("sft_grpo", 2, 2732),
        ("sft", 140, 59850),
    ]


def test_the_report_says_what_was_run(tmp_path: Path, capsys):
    """Two directories of format 1 and one of format 2, which was resumed."""
    rows = [row(task.id, "success", depth=task.depth) for task in FIT_75[:2]]
    flags = {"temperature": 0.5, "max_reply_tokens": 96, "rollouts": 1, "backend": {"thinking": True, "model": None}}
    state = "tinker://model_1/weights/step_000007"
    one = write(tmp_path / "one", rows[:1], **flags)
    two = write(tmp_path / "two", rows[1:], **flags)
    for path in (one, two):
        config = json.loads((path / "config.json").read_text())
        config |= {"git_commit": "a" * 40, "git_changed": True, "server": {"model": "Qwen", "state_path": state}}
        (path / "config.json").write_text(json.dumps(config))
    short = write(tmp_path / "short", rows, **flags | {"max_turns": 40, "temperature": 1.0})
    config = json.loads((short / "config.json").read_text())
    sessions = [{"git_commit": letter * 40, "git_changed": False} for letter in "bcc"]
    config |= {"run_format": 2, "sessions": sessions, "server": {"model": "tiny", "state_path": None}}
    (short / "config.json").write_text(json.dumps(config))
    names = (f"sft={one}", f"sft={two}", f"short={short}")
    evaluate.report(evaluate.ReportConfig(evaluations=names, out=tmp_path / "report"))
    assert "turns 40, temperature 1, reply tokens 96, thinking on" in capsys.readouterr().out
    with (tmp_path / "report" / "what_was_run.csv").open() as file:
        found = list(csv.DictReader(file))
    sft = {
        "source": "measured", "turns": "150", "temperature": "0.5", "reply tokens": "96", "thinking": "on",
        "model": "sft", "base model": "Qwen", "state": state, "rollouts": "1", "commit": "aaaaaaa+",
    }  # fmt: skip
    of_short = sft | {
        "turns": "40", "temperature": "1.0", "model": "short", "base model": "tiny", "state": "untrained",
        "commit": "bbbbbbb, ccccccc",
    }  # fmt: skip
    assert found == [
        {**sft, "directory": str(one)},
        {**sft, "directory": str(two)},
        {**of_short, "directory": str(short)},
    ]


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ({"server": {"model": "other", "state_path": None}}, "model tiny in .*one, other in .*two"),
        (
            {"server": {"model": "tiny", "state_path": "tinker://m/weights/x"}},
            "state None in .*one, tinker://m/weights/x",
        ),
        ({"temperature": 0.5}, "temperature 1.0 in .*one, 0.5 in .*two"),
        ({"max_turns": 75}, "max turns 150 in .*one, 75 in"),
        ({"max_reply_tokens": 96}, "max reply tokens 512 in .*one, 96 in"),
        ({"backend": {"thinking": True}}, "thinking False in .*one, True in"),
        ({"rollouts": 4}, "rollouts 1 in .*one, 4 in"),
        ({"checkpoint": "runs/sft"}, "source None in .*one, runs/sft in"),
    ],
)
def test_directories_that_were_not_played_alike_are_not_one_model(tmp_path: Path, difference: dict, said: str):
    flags = {"temperature": 1.0, "max_reply_tokens": 512, "rollouts": 1, "backend": {"thinking": False}}
    paths = [write(tmp_path / name, [row(name, "success")], **flags) for name in ("one", "two")]
    for path, changes in zip(paths, ({}, difference), strict=True):
        config = json.loads((path / "config.json").read_text()) | {"server": {"model": "tiny", "state_path": None}}
        server = changes.get("server", config["server"])
        changed = {name: value for name, value in changes.items() if name != "server"}
        (path / "config.json").write_text(json.dumps(config | {"server": server, "flags": config["flags"] | changed}))
    names = tuple(f"sft={path}" for path in paths)
    with pytest.raises(UserError, match=rf"two directories of sft were not played alike \({said}.*different names"):
        evaluate.report(evaluate.ReportConfig(evaluations=names))


def test_a_model_with_fewer_turns_than_the_tables_is_named(tmp_path: Path, capsys):
    rows = [row(task.id, "success", depth=task.depth) for task in FIT_75[:3]]
    short, long = (write(tmp_path / name, rows, max_turns=turns) for name, turns in (("short", 40), ("long", 150)))
    evaluate.report(evaluate.ReportConfig(evaluations=(str(short), str(long))))
    out = " ".join(capsys.readouterr().out.split())
    assert "turns 40 model success ceiling episodes" in out
    assert "In no other table" not in out
    evaluate.report(evaluate.ReportConfig(evaluations=(str(short), str(long)), budgets=(75,)))
    out = " ".join(capsys.readouterr().out.split())
    assert "In no other table, since it had fewer turns than they are about: short." in out


def test_pass_at_k_says_over_which_tasks_it_is(tmp_path: Path, capsys):
    tasks = FIT_75[:12]
    rows = [
        row(task.id, "broken" if i == j == 1 else "success", depth=task.depth, episode=j)
        for i, task in enumerate(tasks)
        for j in range(2)
    ]
    whole, broken = [r | {"end": "success"} for r in rows], rows
    paths = [write(tmp_path / name, of) for name, of in (("base", whole), ("sft", broken))]
    evaluate.report(evaluate.ReportConfig(evaluations=tuple(map(str, paths)), out=tmp_path / "report", budgets=(150,)))
    assert f"Not in pass@2, since episodes broke: sft {tasks[1].id}." in " ".join(capsys.readouterr().out.split())
    with (tmp_path / "report" / "main_results.csv").open() as file:
        assert [(row["model"], row["over"]) for row in csv.DictReader(file)] == [("base", ""), ("sft", "11")]
    every = [r | {"end": "broken"} if r["episode"] else r for r in rows]
    evaluate.report(evaluate.ReportConfig(evaluations=(f"sft={write(tmp_path / 'every', every)}",), pass_at=2))
    assert f"{sorted(task.id for task in tasks)[7]} and 4 more." in " ".join(capsys.readouterr().out.split())
    evaluate.report(evaluate.ReportConfig(evaluations=(str(paths[0]),)))
    assert "over" not in capsys.readouterr().out.split("Success\n")[1].split("\n")[1]


def test_a_hundred_episodes_of_one_task_are_not_a_hundred_trials(tmp_path: Path):
    """The command line: one task played 100 times and nine once each say little about other tasks."""
    rows = [row(FIT_75[0].id, "success", depth=7, episode=i) for i in range(100)]
    rows += [row(task.id, "success" if i < 5 else "out_of_turns", depth=7) for i, task in enumerate(FIT_75[1:10])]
    run = write(tmp_path / "run", rows)
    evaluate.report(evaluate.ReportConfig(evaluations=(str(run),), budgets=(150,), out=tmp_path / "report"))
    with (tmp_path / "report" / "main_results.csv").open() as file:
        (found,) = csv.DictReader(file)
    assert float(found["success high"]) - float(found["success low"]) > 0.7


def test_the_ceiling_says_what_it_counts(tmp_path: Path, capsys):
    run = write(tmp_path / "run", [row(FIT_75[0].id, "success")])
    evaluate.report(evaluate.ReportConfig(evaluations=(str(run),), out=tmp_path / "report"))
    said = "asks only for names it has seen"
    assert said in " ".join(capsys.readouterr().out.split())
    for file in ("tables.md", "report.html"):
        assert said in (tmp_path / "report" / file).read_text()
