"""Committing training steps: the server saves a state, one row puts it on record, and old states are deleted."""

import logging
from typing import Any

import tinker

from tinker_client.connection.backend import Backend
from tinker_client.errors import ServerError
from tinker_client.run.run_dir import RunDir, state_name

_log = logging.getLogger(__name__)


def commit(run: RunDir, backend: Backend, trainer: tinker.TrainingClient, step: int, *, keep: int, **more: Any) -> None:
    """Save the state after `step`; the row in checkpoints.jsonl is what makes the steps up to it final.

    A run that is killed before that row is written plays on from the row before.
    keep: how many of the run's states stay on the server, the newest ones. more: goes into the row.
    """
    run.log_checkpoint(step, backend.save_state(trainer, state_name(step)), **more)
    rows = run.checkpoints()
    left = []
    for row in rows[:-keep]:
        try:
            backend.delete_state(row["state_path"])
        except ServerError as error:
            left.append(row)
            _log.warning("the server keeps the old state %s (%s): delete it there", row["state_path"], error)
    if len(rows) > keep:
        run.replace_checkpoints(left + rows[-keep:])
