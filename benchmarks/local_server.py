"""The engines of the local server side by side, in whole scripts as a user runs them.

    python benchmarks/local_server.py
    python benchmarks/local_server.py --model smollm2 --episodes 8 --groups 2 --group-size 4

Each engine serves in turn: evaluate.py plays the same val tasks, then train_grpo.py takes steps with its advantages
made up, so that each of its updates trains on every episode. An engine's first step is left out: there JAX compiles.
Both engines play other episodes (their random numbers differ), so times are also given a turn and a token.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tinker_client.run.jsonl import read_rows  # noqa: E402

# train_grpo.py as it is, but for what episodes are worth: half of each group +1, half -1, whatever the rewards.
GRPO = """
import sys, tyro, train_grpo
train_grpo.advantages = lambda rewards, kind: [[1.0 - 2.0 * (i % 2) for i in range(len(group))] for group in rewards]
train_grpo.main(tyro.cli(train_grpo.Config))
"""


@dataclass(frozen=True)
class Config:
    """What is timed, and with which engines."""

    model: str = "tiny"
    """Model of the local server."""
    engines: tuple[str, ...] = ("torch", "jax")
    """Engines, the one to be compared with the others first."""
    episodes: int = 72
    """Episodes of the evaluation, one a val task of depth 2-3."""
    groups: int = 8
    """Groups of a GRPO step, on train tasks of depth 2."""
    group_size: int = 8
    """Episodes of a group."""
    steps: int = 4
    """GRPO steps; the first is not counted."""
    max_turns: int = 12
    """Turns of an episode."""
    max_reply_tokens: int = 128
    """Tokens of a reply."""
    lr: float = 1e-9
    """Learning rate: so low that every step plays alike."""


def main(config: Config) -> None:
    measured = {engine: measure(engine, config) for engine in config.engines}
    first = config.engines[0]
    table = Table("", *config.engines, *(f"{engine} / {first}" for engine in config.engines[1:]))
    for name in measured[first]:
        values = [measured[engine][name] for engine in config.engines]
        table.add_row(name, *(f"{value:.4g}" for value in values), *(f"{v / values[0]:.2f}" for v in values[1:]))
    Console(width=120).print(table)


def measure(engine: str, config: Config) -> dict[str, float]:
    """What this engine takes, in seconds unless the name says otherwise."""
    with tempfile.TemporaryDirectory() as scratch, serving(config.model, engine, Path(scratch)) as (url, ready_s, peak):
        play = [
            *("--base-url", url, "--engine", engine, "--max-turns", config.max_turns),
            *("--max-reply-tokens", config.max_reply_tokens),
        ]
        evaluation, grpo = Path(scratch) / "evaluation", Path(scratch) / "grpo"
        tasks = ("--difficulty", "easy", "--limit", config.episodes)
        evaluation_s = timed(["evaluate.py", "--run-dir", evaluation, *tasks, *play])
        groups = ("--groups", config.groups, "--group-size", config.group_size, "--steps", config.steps)
        timed(["-c", GRPO, "--run-dir", grpo, "--depths", 2, "--max-staleness", 0, "--lr", config.lr, *groups, *play])
        turns = [turn for row in read_rows(evaluation / "episodes.jsonl") for turn in row["turns"]]
        rows = read_rows(grpo / "metrics.jsonl")[1:]
        step_s, update_s = (median(row[name] for row in rows) for name in ("time/step", "time/train"))
        trained = median(row["tokens/trained"] for row in rows)
    return {
        "ready for the first request": ready_s,
        "an evaluation": evaluation_s,
        "a turn of it, ms": 1e3 * evaluation_s / len(turns),
        "a sampled token of it, ms": 1e3 * evaluation_s / sum(turn["reply_tokens"] for turn in turns),
        "a GRPO step": step_s,
        "its update": update_s,
        "a token with a loss, ms": 1e3 * update_s / trained,
        "peak memory of the server, GiB": peak() / 2**30,
    }


@contextmanager
def serving(model: str, engine: str, folder: Path) -> Iterator[tuple[str, float, Any]]:
    """A server's URL, the seconds until it was ready, and a function for its peak memory so far, in bytes."""
    started = time.monotonic()
    flags = ["--run-dir", folder / "serve", "--model", model, "--engine", engine, "--stop-with-parent"]
    command = [sys.executable, "-m", "tinker_client", "serve", *map(str, flags)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    if not url:
        sys.exit(f"the server did not start: see {folder / 'serve' / 'server' / 'server.log'}")
    ready_s, peak, stop = time.monotonic() - started, [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            used = 0
            for process in psutil.Process(server.pid).children(recursive=True):
                try:
                    used += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak[0] = max(peak[0], used)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield url, ready_s, lambda: peak[0]
    finally:
        stop.set()
        watcher.join()
        server.terminate()
        server.wait()


def timed(script: list[Any]) -> float:
    """Seconds of one of the scripts, from its start to its end."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, *map(str, script)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{json.dumps([str(part) for part in script])} failed:\n{done.stderr}")
    return time.monotonic() - started


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
