"""How long 150 round-2 demonstrations take, 30 of them with recovery: `python benchmarks/demonstrations.py`.

Every run is a fresh process, so that reading the benchmark is part of it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

RUNS = 5
_IN_PROCESS = """
from time import perf_counter
start = perf_counter()
from sft_data import ROUNDS
from sft_data.dataset import sample
from sft_data.files import write_rows
imported = perf_counter()
from textcraft import load_tasks
from textcraft.world import load_world
load_world()
tasks = load_tasks("train", "medium")
loaded = perf_counter()
rows = sample(tasks, ROUNDS[2], 150, recovery=30, mistakes=1, seed=0)
played = perf_counter()
import sys, pathlib
write_rows(pathlib.Path(sys.argv[1]), rows)
print(imported - start, loaded - imported, played - loaded, perf_counter() - played)
"""


def main() -> None:
    parts: list[list[float]] = []
    commands: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        out = str(Path(directory) / "demonstrations.jsonl")
        for _ in range(RUNS):
            script = [sys.executable, "-c", _IN_PROCESS, out]
            parts.append([float(seconds) for seconds in subprocess.check_output(script, text=True).split()])
            start = perf_counter()
            subprocess.run([sys.executable, "-m", "sft_data", "--out", out], check=True, capture_output=True)
            commands.append(perf_counter() - start)
    for name, values in zip(("import", "load world and tasks", "play", "write"), zip(*parts, strict=True), strict=True):
        print(f"{name:24} {min(values):6.3f} s")
    print(f"{'the whole command':24} {min(commands):6.3f} s   (aim: under 2 s; best of {RUNS})")


if __name__ == "__main__":
    main()
