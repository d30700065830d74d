"""What the client costs in a GRPO run, against a stand-in server of fixed latencies (benchmarks/stand_in.py).

    python benchmarks/grpo.py turns    # client time per turn, at 128 concurrent episodes
    python benchmarks/grpo.py steps    # time per optimizer step, synchronous and sampling ahead

Times per turn are CPU time of this process. Those per step are compared within one run, on a server that waits and does
not compute.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import numpy as np
import tinker
import tyro
from rich.console import Console
from rich.table import Table
from stand_in import LOOK

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import train_grpo  # noqa: E402
from textcraft import load_tasks  # noqa: E402
from tinker_client.connection.alive import Liveness, answers  # noqa: E402
from tinker_client.connection.connect import BackendConfig, connect  # noqa: E402
from tinker_client.connection.models import TINY_MODEL, load_tokenizer, stop_token_ids  # noqa: E402
from tinker_client.play.chat import ChatTemplate  # noqa: E402
from tinker_client.play.environment import ENVIRONMENTS  # noqa: E402
from tinker_client.play.gate import Gate  # noqa: E402
from tinker_client.play.records import EpisodeRecord  # noqa: E402
from tinker_client.play.rollout import PlayConfig, Policy, play  # noqa: E402
from tinker_client.run.jsonl import read_rows  # noqa: E402
from tinker_client.train.advantages import Rewards  # noqa: E402
from tinker_client.train.updates import sync_policy  # noqa: E402


class Instant:
    """A sampling client that answers at once, so that only our own work remains."""

    def __init__(self, template: ChatTemplate) -> None:
        tokens = template.reply(LOOK)
        sequence = tinker.SampledSequence("stop", np.array(tokens, np.int32), np.full(len(tokens), -0.5, np.float32))
        self._response = tinker.SampleResponse([sequence])

    def sample(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams
    ) -> Future[tinker.SampleResponse]:
        """A reply that looks at the inventory."""
        future: Future[tinker.SampleResponse] = Future()
        future.set_result(self._response)
        return future


@contextmanager
def stand_in(*flags: object) -> Iterator[BackendConfig]:
    """A stand-in server in another process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = str(Path(__file__).with_name("stand_in.py"))
    with subprocess.Popen([sys.executable, script, "--port", str(port), *map(str, flags)]) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            while not answers(url, timeout=1.0):
                if process.poll() is not None:
                    sys.exit("the stand-in server did not start")
                time.sleep(0.2)
            yield BackendConfig(base_url=url, tokenizer=str(TINY_MODEL))
        finally:
            process.terminate()


def turns(episodes: int = 128, through_sdk: int = 16) -> None:
    """Client time per turn, in our own code for 75 and 150 turns, and with the SDK and HTTP for fewer.

    Args:
        episodes: Episodes at once.
        through_sdk: Turns of the episodes that go through the SDK to the stand-in server.
    """
    tokenizer = load_tokenizer(str(TINY_MODEL))
    template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
    table = Table(f"{episodes} episodes at once", "tokens at the end", "ms per turn", "ms per episode")
    per_episode = {}
    for count in (75, 150):
        per_episode[count], tokens = timed_play(Policy(Instant(template), 0), template, episodes, count)
        milliseconds = per_episode[count] * 1e3
        table.add_row(f"ours, {count} turns", f"{tokens:,}", f"{milliseconds / count:.2f}", f"{milliseconds:.0f}")
    with (
        stand_in("--finish-share", 0, "--turn-s", 0.1) as config,
        tempfile.TemporaryDirectory() as directory,
        connect(config, Path(directory)) as backend,
    ):
        policy = sync_policy(backend, backend.new_training_client(rank=32, seed=0), version=0)
        seconds, tokens = timed_play(policy, template, episodes, through_sdk)
    milliseconds = seconds * 1e3
    label = f"with the SDK and HTTP, {through_sdk} turns"
    table.add_row(label, f"{tokens:,}", f"{milliseconds / through_sdk:.2f}", f"{milliseconds:.0f}")
    console = Console()
    console.print(table)
    ratio = per_episode[150] / per_episode[75]
    console.print(f"our own code: 150 turns cost {ratio:.2f} times as much as 75 (aim: at most 2.3; under 2 ms a turn)")


def timed_play(policy: Policy, template: ChatTemplate, episodes: int, count: int) -> tuple[float, int]:
    """CPU seconds per episode of so many turns, and the tokens that it has at its end."""
    tasks = load_tasks("train", depths=[4])[:episodes]
    playing = PlayConfig(
        environment=ENVIRONMENTS["textcraft"],
        template=template,
        max_turns=count,
        max_reply_tokens=512,
        temperature=1.0,
        context_length=10**6,
        seed=0,
    )
    before = time.process_time()
    played: list[EpisodeRecord] = []
    play(tasks, 1, policy, playing, Gate(None), on_episode=played.append, liveness=Liveness())
    seconds = time.process_time() - before
    assert all(len(episode.turns) == count for episode in played)
    return seconds / episodes, len(played[0].conversation.tokens)


def steps(steps: int = 14, groups: int = 8, group_size: int = 4, turn_s: float = 0.6, train_s: float = 2.0) -> None:
    """Time per optimizer step of train_grpo.py, and its ratio to the larger of sampling time and training time.

    Sampling time is that of a server whose slots never idle: the turns of a step times their length, over the slots.
    It has slots for the episodes of one step. Shorter turns would measure the SDK, which takes milliseconds for each.

    Args:
        steps: Optimizer steps of a run; the means are over the middle half, where neither end of the run is felt.
        groups: Groups a step.
        group_size: Episodes of a group.
        turn_s: Seconds of a reply.
        train_s: Seconds of a forward_backward; the rest of an update takes 0.6 s.
    """
    table = Table("--max-staleness", "weights", "step", "waiting", "training", "sampling", "staleness", "ratio")
    flags = ("--turn-s", turn_s, "--slots", groups * group_size, "--forward-backward-s", train_s)
    with stand_in(*flags) as backend, tempfile.TemporaryDirectory() as directory:
        for name, max_staleness, shared in (("sync", 0, False), ("ahead", 4, False), ("shared", 4, True)):
            config = train_grpo.Config(
                run_dir=Path(directory) / name,
                backend=backend,
                depths=(4,),
                steps=steps,
                groups=groups,
                group_size=group_size,
                max_turns=20,
                max_staleness=max_staleness,
                save_every=steps,
            )
            pausing = patch("train_grpo.Gate", lambda limit, **_: Gate(limit, shared_weights=True))
            with pausing if shared else nullcontext(), patch("train_grpo.advantages", alternating):
                train_grpo.main(config)
            rows = read_rows(config.run_dir / "metrics.jsonl")[steps // 4 : -steps // 4]
            step, wait, train, turns, stale = (
                fmean(row[metric] for row in rows)
                for metric in ("time/step", "time/wait", "time/train", "episode/turns", "staleness/mean")
            )
            sampling = turns * turn_s  # episodes and slots are as many
            if not shared:
                alone = train  # with shared weights it includes the wait for turns in flight
            seconds = (f"{value:.2f} s" for value in (step, wait, train, sampling))
            ratio = f"{step / max(sampling, alone):.2f}"
            table.add_row(str(max_staleness), "shared" if shared else "own", *seconds, f"{stale:.1f}", ratio)
    Console(width=120).print(table)


def alternating(groups: Rewards, kind: str) -> list[list[float]]:
    """Advantages whatever the rewards are, so that every step trains on everything."""
    return [[1.0 - 2.0 * (number % 2) + 0.1 for number in range(len(rewards))] for rewards in groups]


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"turns": turns, "steps": steps}, description=__doc__)
