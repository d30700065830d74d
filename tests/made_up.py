"""Made-up episodes, for tests of the report."""

import json
from collections.abc import Sequence
from pathlib import Path

from textcraft import load_tasks
from textcraft.facts import ideal_run
from tinker_client.evaluation.episodes import Conditions, Evaluation, played

HARD = load_tasks("val", "hard")
FIT_75 = [task for task in HARD if ideal_run(task).turns <= 75]
KINDS = {"i": "info", "c": "craft", "f": "failed_craft", "g": "failed_craft", "x": "invalid", "v": "inventory"}
REPLIES = {
    "f": 'first\n<tool>craft({"a": 1, "b": 2}, ("c", 1))</tool>',
    "g": 'other\n<tool>craft({"b": 2, "a": 1}, ["c", 1])</tool>',
}


def row(
    task_id: str, end: str, turns: str = "ic", *, depth: int = 7, episode: int = 0, difficulty: str = "hard"
) -> dict:
    """One letter a turn, see KINDS; a capital letter is a cut-off reply. g is the same call as f, written otherwise."""
    return {
        "task_id": task_id,
        "depth": depth,
        "difficulty": difficulty,
        "group": 0,
        "episode": episode,
        "end": end,
        "error": None,
        "turns": [
            {
                "reply": REPLIES.get(letter.lower(), "<tool>...</tool>"),
                "observation": "",
                "kind": KINDS[letter.lower()],
                "cut_off": letter.isupper(),
                "reply_tokens": 10,
                "prompt_tokens": 100,
            }
            for letter in turns
        ],
    }


def evaluation(rows: Sequence[dict], name: str = "run", max_turns: int = 150, source: str | None = None) -> Evaluation:
    broken = tuple(row["task_id"] for row in rows if row["end"] == "broken")
    episodes = tuple(played(row) for row in rows if row["end"] != "broken")
    return Evaluation(name, (), episodes, broken, Conditions(max_turns, source=source))


def write(path: Path, rows: Sequence[dict], **flags: object) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"run_format": 1, "flags": {"max_turns": 150, **flags}}))
    (path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def quarter(
    name: str, tasks: Sequence, *, skill: float, episodes: int = 4, max_turns: int = 150, source: str | None = None
) -> Evaluation:
    """The first `skill` of the tasks are solved in their ideal number of turns, with a failed craft."""
    rows = [
        row(
            task.id,
            "success" if i < skill * len(tasks) else "out_of_turns",
            "f" + "c" * ((ideal_run(task).turns if i < skill * len(tasks) else 150) - 1),
            depth=task.depth,
            difficulty=task.difficulty,
            episode=episode,
        )
        for i, task in enumerate(tasks)
        for episode in range(episodes)
    ]
    return evaluation(rows, name, max_turns, source)
