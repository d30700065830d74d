"""The report as files: tables, pictures, and one HTML page that needs no network, with every episode to look at.

Episodes are compressed one by one and unpacked when they are opened, so that thousands of long ones stay usable. What
models wrote never becomes HTML: it is data in script blocks that no browser runs, shown as text, and the page's policy
allows no script but its own.
"""

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from textcraft.prompt import opening_message
from tinker_client.errors import UserError
from tinker_client.evaluation.episodes import Row, benchmark_task, latest_rows, repeated_failed_crafts
from tinker_client.evaluation.figures import Picture, pictures
from tinker_client.evaluation.render import to_csv, to_html, to_markdown
from tinker_client.evaluation.scope import Scope
from tinker_client.evaluation.tables import Table, tables

_FOLDER = Path(__file__).parent


def write_report(what: Scope, folder: Path) -> None:
    """Write tables.md, a CSV file a table, the pictures and report.html into `folder`, replacing older ones.

    Raises UserError if the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shown = tables(what)
        (folder / "tables.md").write_text(to_markdown(shown), encoding="utf-8")
        for table in shown:
            (folder / f"{table.key}.csv").write_text(to_csv(table), encoding="utf-8")
        drawn = pictures(what)
        for picture in drawn:
            (folder / f"{picture.key}.png").write_bytes(picture.encode("png"))
            (folder / f"{picture.key}.svg").write_bytes(picture.encode("svg"))
        write_page(what, shown, drawn, folder / "report.html")
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): give another --out") from error


def write_page(what: Scope, shown: Sequence[Table], drawn: Sequence[Picture], path: Path) -> None:
    """Write the page, replacing an older one. Raises OSError if it cannot be written."""
    template, style, script = (
        _FOLDER.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    rows = list(_rows(what))
    turns = [_turns(row) for _, row in rows]
    page = Template(template).substitute(
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        title="TextCraft-Synth: " + html.escape(", ".join(evaluation.name for evaluation in what.evaluations)),
        style=style,
        script=script,
        tables="\n".join(map(to_html, shown)),
        pictures="\n".join(map(_figure, drawn)),
        index=_json_block(_index(what, rows, [_counts(of_episode) for of_episode in turns])),
        episodes="\n".join(
            f'<script type="text/plain" id="episode-{number}">{_pack(of_episode)}</script>'
            for number, of_episode in enumerate(turns)
        ),
    )
    path.write_text(page, encoding="utf-8")


def _rows(what: Scope) -> Iterator[tuple[int, Row]]:
    """Every episode that the report is about, broken ones too, with the number of its model."""
    for number, evaluation in enumerate(what.evaluations):
        tasks = {*evaluation.broken, *(episode.task_id for episode in evaluation.episodes)}
        rows = [row for directory in evaluation.directories for row in latest_rows(directory.path)]
        for row in sorted(rows, key=lambda row: (row["depth"], row["task_id"], row["episode"])):
            if row["task_id"] in tasks:
                yield number, row


def _index(what: Scope, rows: Sequence[tuple[int, Row]], counts: Sequence[list[int]]) -> dict[str, Any]:
    """What the page's list and filters show. Models, tasks and ends are numbers in the episodes."""
    tasks = {row["task_id"]: row["depth"] for _, row in rows}
    ends = {row["end"]: None for _, row in rows}
    task_numbers, end_numbers = ({name: number for number, name in enumerate(names)} for names in (tasks, ends))
    return {
        "models": [evaluation.name for evaluation in what.evaluations],
        "tasks": [{"id": task, "depth": depth, "opening": _opening(task)} for task, depth in tasks.items()],
        "ends": list(ends),
        "episodes": [
            {
                "model": model,
                "task": task_numbers[row["task_id"]],
                "episode": row["episode"],
                "end": end_numbers[row["end"]],
                "turns": len(row["turns"]),
                "counts": of_episode,
                "error": row["error"],
            }
            for (model, row), of_episode in zip(rows, counts, strict=True)
        ],
    }


def _turns(row: Row) -> list[list[Any]]:
    """What the page shows of each turn: reply, observation, kind, tokens, cut off, a repeated failed craft."""
    repeated = set(repeated_failed_crafts(row))
    return [
        [turn["reply"], turn["observation"], turn["kind"], turn["reply_tokens"], turn["cut_off"], number in repeated]
        for number, turn in enumerate(row["turns"], start=1)
    ]


def _counts(turns: Sequence[list[Any]]) -> list[int]:
    """Failed crafts, repeated ones, invalid turns, cut-off replies and reply tokens, from what `_turns` gives."""
    kinds = [turn[2] for turn in turns]
    tokens, cut_off, repeated = (sum(turn[column] for turn in turns) for column in (3, 4, 5))
    return [kinds.count("failed_craft"), repeated, kinds.count("invalid"), cut_off, tokens]


def _opening(task_id: str) -> str:
    task = benchmark_task(task_id)
    return "" if task is None else opening_message(task)


def _pack(value: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(value, ensure_ascii=False).encode())).decode()


def _json_block(value: Mapping[str, Any]) -> str:
    """JSON that cannot end the script block it stands in, nor begin a comment."""
    return json.dumps(value).replace("<", "\\u003c")


def _hash(content: str) -> str:
    """The name by which the page's policy allows one inline block (Content Security Policy level 2)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _figure(picture: Picture) -> str:
    source = base64.b64encode(picture.encode("svg")).decode()
    title = html.escape(picture.title, quote=True)
    image = f'<img src="data:image/svg+xml;base64,{source}" alt="{title}">'
    return f"<figure>{image}<figcaption>{title}</figcaption></figure>"
