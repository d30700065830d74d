"""How fast the game is, beside the package's own environment in one run: `python benchmarks/game.py`.

A turn of ours reads the reply's text, runs the call and words the answer. The package's tool call takes no text: it is
its coroutine, awaited, with the parameter model built before the clock starts.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from platoon_textcraft.env import CraftParams, FinishParams, GetInfoParams, TextCraftSynthEnvironment
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from textcraft import Episode, load_tasks  # noqa: E402
from textcraft.oracle import advise  # noqa: E402
from textcraft.tools import Call, Craft, GetInfo, parse, render  # noqa: E402
from textcraft.world import Task  # noqa: E402

REPLY_CHARS = 4096
PROCESS_RUNS = 7
IMPORT = "import textcraft"
LOAD = "from textcraft import world; world.load_world(); world.load_tasks('val')"


def ideal_calls(task: Task) -> list[Call]:
    episode, calls = Episode(task, max_turns=1000), []
    while episode.end is None:
        calls.append(advise(episode).call)
        episode.step(render(calls[-1]))
    return calls


async def turn_times(tasks: list[Task], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Kind of call -> seconds of (our turn, the package's tool call) for each call of the tasks' ideal runs."""
    times: dict[str, list[tuple[float, float]]] = {"get_info": [], "craft": [], "finish": []}
    for task in tasks:
        calls = ideal_calls(task)
        for _ in range(repeats):
            episode = Episode(task, max_turns=len(calls))
            spec = {"misc": {"target_items": task.targets, "initial_inventory": task.inventory}}
            package = TextCraftSynthEnvironment(spec)
            for call in calls:
                reply = render(call)
                kind, tool = package_call(package, call)
                start = time.perf_counter()
                episode.step(reply)
                between = time.perf_counter()
                await tool()
                times[kind].append((between - start, time.perf_counter() - between))
    return times


def package_call(package: TextCraftSynthEnvironment, call: Call) -> tuple[str, Callable[[], Any]]:
    match call:
        case GetInfo(items):
            asked = GetInfoParams(items=list(items))
            return "get_info", lambda: package.get_info(asked)
        case Craft(ingredients, target):
            wanted = CraftParams(ingredients=ingredients, target=target)
            return "craft", lambda: package.craft(wanted)
    done = FinishParams(message="done")
    return "finish", lambda: package.finish(done)


def replies(count: int, rng: random.Random) -> Iterator[str]:
    """Replies of REPLY_CHARS characters: prose and a call, one long call, a mutated one, and repeated debris."""
    names = [f"{rng.choice('cmot')}{rng.randint(0, 9)}_i{rng.randint(1, 9)}_{rng.randint(10, 24)}" for _ in range(300)]
    for number in range(count):
        call = render(
            Craft({name: rng.randint(1, 99) for name in rng.sample(names, rng.randint(1, 190))}, ("c2_i1", 3))
        )
        match number % 4:
            case 0:
                text = "c2_i1: 2, /3 -> 1 crafts -> c2_i1+2\n" * 120
                yield text[: REPLY_CHARS - 50] + '<tool>get_info(["c2_i1", "m0_i1"])</tool>'
            case 1:
                yield call
            case 2:
                cut = rng.randrange(6, len(call) - 7)
                yield (call[:cut] + rng.choice("\"'[({,:1-\\ x") * rng.randint(1, 40) + call[cut:])[:REPLY_CHARS]
            case 3:
                debris = "".join(rng.choices("[](){}\"'\\,:-+.019aj \n#_", k=rng.randint(1, 4)))
                yield f"<tool>craft({{'a': [{debris * (4000 // len(debris))}]}}, ('a', 1))</tool>"


def parse_times(count: int) -> np.ndarray:
    """Seconds of each parse, the best of three, so that other work on the machine is not counted."""
    return np.array([min(timed(parse, reply) for _ in range(3)) for reply in replies(count, random.Random(0))])


def timed(function: Callable[[str], object], argument: str) -> float:
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start


def process_time(code: str) -> float:
    """Seconds of `code` in a fresh process after the start of Python, the best of PROCESS_RUNS."""
    program = f"import time; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"
    command = [sys.executable, "-c", program]
    outputs = [subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout for _ in range(PROCESS_RUNS)]
    return min(float(output) for output in outputs)


def main() -> None:
    console = Console()
    times = asyncio.run(turn_times(load_tasks("val", depths=range(2, 10))[::10], repeats=5))
    times["all"] = [pair for pairs in times.values() for pair in pairs]
    table = Table("one turn, median microseconds", "ours", "package", "ratio (aim: at most 3)")
    for kind, pairs in times.items():
        ours, package = np.median(np.array(pairs), axis=0) * 1e6
        table.add_row(f"{kind} ({len(pairs)} calls)", f"{ours:.1f}", f"{package:.1f}", f"{ours / package:.2f}")
    console.print(table)
    table = Table("what", "measured", "aim")
    milliseconds = parse_times(4000) * 1e3
    table.add_row(f"parse replies up to {REPLY_CHARS} characters, median", f"{np.median(milliseconds):.2f} ms", "")
    table.add_row("the same, 99th percentile", f"{np.percentile(milliseconds, 99):.2f} ms", "1 ms")
    table.add_row("import textcraft", f"{process_time(IMPORT):.3f} s", "0.1 s")
    table.add_row("import it, load the world and the val tasks", f"{process_time(LOAD):.3f} s", "0.3 s")
    console.print(table)


if __name__ == "__main__":
    main()
