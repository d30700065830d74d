"""Memory of evaluate.py over 20,000 episodes, against a stand-in server: it must not grow with what has been played.

    python benchmarks/soak.py

Compares the peak of the process at the end with its peak after the first tenth of the episodes, in one run.
"""

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import tyro
from grpo import ROOT, stand_in


@dataclass(frozen=True)
class Config:
    """How much is played."""

    rollouts: int = 32
    """Episodes of each of the 632 val tasks."""
    max_turns: int = 3
    """Turns of an episode."""


def main(config: Config) -> None:
    total = 632 * config.rollouts
    early, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as directory, stand_in("--turn-s", 0.01, "--slots", 512) as backend:
        episodes = Path(directory) / "run" / "episodes.jsonl"
        flags = {
            "run-dir": episodes.parent,
            "base-url": backend.base_url,
            "tokenizer": backend.tokenizer,
            "rollouts": config.rollouts,
            "max-turns": config.max_turns,
            "max-reply-tokens": 128,
        }
        command = [sys.executable, "evaluate.py", *(f"--{name}={value}" for name, value in flags.items())]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            peak = played = read = 0
            while process.poll() is None:
                new = written(episodes, read)
                played, read = played + new.count(b"\n"), read + len(new)
                peak = max(peak, psutil.Process(process.pid).memory_info().rss)
                if not early and played >= total / 10:
                    early, counted = peak, played
                # summary.json is made from all episodes, after the last of them: not what this is about.
                if played >= total:
                    break
                time.sleep(0.5)
            if process.wait() != 0:
                sys.exit(f"evaluate.py failed after {played} episodes")
    megabytes = 2**20
    print(f"{played:,} episodes in {time.monotonic() - began:.0f} s")
    print(f"peak {early / megabytes:.0f} MiB after {counted:,} episodes, {peak / megabytes:.0f} MiB at the end")
    print(f"ratio {peak / early:.3f} (aim: at most 1.10)")


def written(path: Path, start: int) -> bytes:
    """What a file that grows holds from `start` on."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read()


if __name__ == "__main__":
    main(tyro.cli(Config))
