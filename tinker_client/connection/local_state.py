"""What a local server keeps on disk: its database and its states, while it does not run."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tinker_client.errors import UserError
from tinker_client.run.run_dir import TRAINING_PATH


def import_state(state_path: str, source: Path, target: Path) -> int:
    """Bring a training state from one local server's directory into another's, before that one starts.

    Only the rows and the checkpoint of this state are brought, as hard links where the file system can. What the target
    holds already stays, also if the source has deleted it since.
    Returns its LoRA rank. Raises UserError if neither holds the state.
    """
    match = TRAINING_PATH.fullmatch(state_path)
    assert match is not None
    model, name = match["model"], match["name"]
    rank = _rank(target, model, name)
    if rank is None:
        rank = _rank(source, model, name)
        if rank is None:
            raise UserError(f"{source} does not hold {state_path}: with the server that saved it, give --base-url")
        with closing(_reading(source / "tinker.db")) as database:
            _copy_rows(database, target / "tinker.db", model, name)
        checkpoint = _checkpoint(model, name)
        _link(source / checkpoint, target / checkpoint)
    return rank


def forget_requests(database: Path) -> None:
    """Delete the requests, which hold every prompt and batch ever sent, from a database that no server uses.

    A request that a killed run left open would be run again by the next server, and an open create_model would take the
    only free adapter.
    """
    if not database.exists():
        return
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'futures'").fetchone():
            connection.execute("DELETE FROM futures")
            connection.execute("VACUUM")


def _rank(directory: Path, model: str, name: str) -> int | None:
    """The LoRA rank of a state that a local server's directory holds whole; None if it does not."""
    if not (directory / "tinker.db").exists() or not (directory / _checkpoint(model, name)).exists():
        return None
    with closing(_reading(directory / "tinker.db")) as database:
        row = database.execute(
            "SELECT m.lora_config FROM models m JOIN checkpoints c USING (model_id) "
            "WHERE model_id = ? AND checkpoint_id = ? AND checkpoint_type = 'TRAINING' AND c.status = 'COMPLETED'",
            (model, name),
        ).fetchone()
    return None if row is None else int(json.loads(row[0])["rank"])


def _checkpoint(model: str, name: str) -> Path:
    return Path("checkpoints") / model / f"{name}.tar.gz"


def _reading(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{database}?mode=ro", uri=True)


def _copy_rows(source: sqlite3.Connection, target: Path, model: str, name: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(target)) as connection, connection:
        known = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        for table, sql in source.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
            if table not in known and not table.startswith("sqlite_"):
                connection.execute(sql)
        (session,) = source.execute("SELECT session_id FROM models WHERE model_id = ?", (model,)).fetchone()
        for table, where, keys in (
            ("sessions", "session_id = ?", (session,)),
            ("models", "model_id = ?", (model,)),
            ("checkpoints", "model_id = ? AND checkpoint_id = ? AND checkpoint_type = 'TRAINING'", (model, name)),
        ):
            for row in source.execute(f"SELECT * FROM {table} WHERE {where}", keys):  # noqa: S608
                marks = ", ".join("?" for _ in row)
                connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)  # noqa: S608


def _link(source: Path, target: Path) -> None:
    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=link)
    else:
        link(str(source), str(target))
