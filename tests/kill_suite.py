"""Kills scripts and servers at random moments, resumes, and counts what survived; on the real server, for an hour.

    python -m tests.kill_suite --out /tmp/kills                     # 30 kills of scripts, 8 of servers, 6 faults
    python -m tests.kill_suite --out /tmp/kills --kills 4 --server-kills 0 --faults

Ends with `kills survived / tried`, and with exit status 1 unless all did. --out keeps every run directory.
"""

import itertools
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import tyro
from rich.console import Console

from tests.fault_proxy import KINDS, Kind, faulty
from tinker_client.chat import ChatTemplate
from tinker_client.connect import BackendConfig, connect
from tinker_client.datums import supervised_batch
from tinker_client.demonstrations import read_demonstrations, tokenize
from tinker_client.errors import EXIT_SERVER_ERROR, EXIT_USER_ERROR
from tinker_client.jsonl import read_rows
from tinker_client.models import TINY_MODEL
from tinker_client.run_dir import resolve_state
from tinker_client.server import LocalServer

REPOSITORY = Path(__file__).resolve().parents[1]
PLAY = "--depths 2 --max-turns 4 --max-reply-tokens 24"
GRPO = f"-m tests.coin_grpo {PLAY} --steps 6 --groups 2 --group-size 4 --lr 1e-3 --save-every 2"
SCRIPTS = {
    "sft": "train_sft.py --data {data} --rank 8 --epochs 2 --batch-size 4 --lr 1e-3 --save-every 2",
    "grpo": f"{GRPO} --max-staleness 0",
    "grpo_ahead": f"{GRPO} --max-staleness 2",
    "evaluate": f"evaluate.py {PLAY} --limit 12 --rollouts 4",
}
ATTEMPTS = 20  # of a run whose server misbehaves, before it counts as lost


@dataclass(frozen=True)
class Config:
    """How often what is killed."""

    out: Path
    """Folder for the runs; what it holds is deleted."""
    kills: int = 30
    """SIGKILLs of scripts, dealt out in turn."""
    server_kills: int = 8
    """SIGKILLs of their server's engine, dealt out in turn."""
    faults: tuple[Kind, ...] = KINDS[1:]
    """What a proxy does to 5 % of the requests of a synchronous GRPO run, one after the other."""
    kills_a_run: int = 3
    """Kills of one run, at most."""
    seed: int = 0
    """Decides the moments."""


def main(config: Config) -> bool:
    """Whether all runs survived."""
    shutil.rmtree(config.out, ignore_errors=True)
    config.out.mkdir(parents=True)
    suite = Suite(config.out, random.Random(config.seed), config.kills_a_run)
    suite.undisturbed()
    for victim, count in (("script", config.kills), ("engine", config.server_kills)):
        suite.kill_all(victim, count)
    for kind in config.faults:
        suite.misbehave(kind)
    suite.report()
    return suite.survived == suite.tried


class Suite:
    """The runs, and what became of them."""

    def __init__(self, out: Path, rng: random.Random, kills_a_run: int) -> None:
        self.out, self.rng, self.kills_a_run = out, rng, kills_a_run
        self.console = Console(highlight=False, soft_wrap=True)
        self.data = out / "demonstrations.jsonl"
        self.seconds: dict[str, float] = {}
        self.moments: Counter[str] = Counter()
        self.survived = self.tried = 0

    def undisturbed(self) -> None:
        """One run of each script, to compare with and to know how long it takes."""
        make = "-m sft_data --depths 2 --count 12 --recovery 0 --wording terse"
        subprocess.run([sys.executable, *make.split(), "--out", self.data], cwd=REPOSITORY, check=True)
        for name in SCRIPTS:
            began = time.monotonic()
            process = self.start(name, self.out / f"{name}_whole")
            if process.wait() != 0:
                sys.exit(f"the undisturbed run of {name} failed: see {self.out / f'{name}_whole.log'}")
            self.seconds[name] = time.monotonic() - began
            self.console.print(f"{name}: {self.seconds[name]:.0f} s undisturbed")

    def start(self, name: str, path: Path, *flags: str) -> subprocess.Popen[bytes]:
        """The script, going on with what there is."""
        command = [*SCRIPTS[name].format(data=self.data).split(), "--run-dir", str(path), "--resume", *flags]
        with path.with_name(path.name + ".log").open("ab") as log:
            return subprocess.Popen([sys.executable, *command], cwd=REPOSITORY, stdout=log, stderr=log)

    def kill_all(self, victim: str, count: int) -> None:
        """So many kills, of all scripts in turn, several a run."""
        for number, name in enumerate(itertools.cycle(SCRIPTS)):
            if count <= 0:
                return
            count -= self.survive(name, self.out / f"{number}_{name}_{victim}", victim, min(count, self.kills_a_run))

    def survive(self, name: str, path: Path, victim: str, kills: int) -> int:
        """A run that is killed so often, goes on to its end and is then compared with the undisturbed one.

        Returns the kills, fewer if it ended before.
        """
        killed = sum(self.kill(name, path, victim) for _ in range(kills))
        status = self.start(name, path).wait()
        problem = f"exit status {status}" if status else self.problem(name, path)
        self.tried += killed
        self.survived += 0 if problem else killed
        self.console.print(f"{path.name}: {killed} kills, {problem or 'as if nothing had happened'}")
        return killed

    def kill(self, name: str, path: Path, victim: str) -> bool:
        """Start the script and kill it, or the engine of its server, at a random moment of its time."""
        process = self.start(name, path)
        moment_s = time.monotonic() + self.rng.uniform(0, self.seconds[name])
        while process.poll() is None and time.monotonic() < moment_s:
            time.sleep(0.05)
        victims = [process] if victim == "script" else engines_of(process)
        if process.poll() is not None or not victims:
            process.wait()
            return False
        self.moments[moment(path)] += 1
        for one in victims:
            one.send_signal(signal.SIGKILL)
        status = process.wait()
        if victim == "engine" and status not in (EXIT_SERVER_ERROR, EXIT_USER_ERROR):
            self.console.print(f"{path.name}: exit status {status} after its server was killed")
        return True

    def misbehave(self, kind: Kind) -> None:
        """A GRPO run whose requests suffer from one kind of fault, started again until it is done."""
        path = self.out / f"grpo_{kind}"
        # A create_model whose answer is lost leaves an adapter behind, hence several places.
        with LocalServer(self.out / "server" / kind, TINY_MODEL, max_rank=32, adapters=8) as server:
            server.wait_until_ready()
            with faulty(server.base_url, [kind]) as proxy:
                flags = ("--base-url", proxy.url, "--loss-reduction", "sequence_mean", "--turns-in-flight", "32")
                starts = 1
                while (status := self.start("grpo", path, *flags).wait()) != 0 and starts < ATTEMPTS:
                    starts += 1
        problem = f"exit status {status}" if status else self.problem("grpo", path)
        self.tried += 1
        self.survived += not problem
        faults = f"{proxy.faults.total()} of {proxy.requests} requests, {starts} starts"
        self.console.print(f"{path.name}: {faults}, {problem or 'as if nothing had happened'}")

    def problem(self, name: str, path: Path) -> str | None:
        """What differs from the undisturbed run."""
        whole = self.out / f"{name}_whole"
        if name == "evaluate":
            same = read_rows(path / "episodes.jsonl") == read_rows(whole / "episodes.jsonl")
            return None if same else "other episodes"
        steps = [[row["step"] for row in read_rows(run / "metrics.jsonl")] for run in (path, whole)]
        if steps[0] != steps[1] or steps[0] != list(range(1, len(steps[0]) + 1)):
            return f"steps {steps[0]}"
        last = [read_rows(run / "checkpoints.jsonl")[-1]["step"] for run in (path, whole)]
        if last[0] != last[1]:
            return f"the last saved step is {last[0]}"
        if name == "sft":
            difference = float(np.abs(self.logprobs(path) - self.logprobs(whole)).max())
            return None if difference < 1e-4 else f"logprobs differ by {difference:.2g}"
        return consumed_once(path)

    def logprobs(self, run: Path) -> np.ndarray:
        """Of all demonstrations' replies under the last state of a run."""
        with connect(BackendConfig(), self.out / "logprobs" / run.name, init=resolve_state(str(run))) as backend:
            template = ChatTemplate(backend.tokenizer, backend.stop_token_ids)
            conversations = tokenize(read_demonstrations(self.data), template, backend.context_length)
            trainer = backend.adapter(rank=8, seed=0)
            batch = supervised_batch(conversations, backend.loss_reduction)
            future = trainer.forward(batch.datums, batch.loss_fn, batch.loss_fn_config)
            return np.concatenate(batch.action_logprobs(backend.result(future, "the logprobs")))

    def report(self) -> None:
        """The last lines."""
        self.console.print("moments: " + ", ".join(f"{moment} {n}" for moment, n in self.moments.most_common()))
        self.console.print(f"kills survived / tried: {self.survived} / {self.tried}")


def consumed_once(path: Path) -> str | None:
    """What is wrong with the groups that the steps of a GRPO run have taken: each must be the next one of the plan."""
    groups = int(read_rows(path / "metrics.jsonl")[-1]["plan/groups"])
    plan = [(row["step"], row["group"], row["task_id"]) for row in read_rows(path / "plan.jsonl")][:groups]
    played = [row for file in sorted((path / "episodes").glob("*.jsonl")) for row in read_rows(file)]
    wanted = [(*group, episode) for group in plan for episode in range(4)]
    if [(row["step"], row["group"], row["task_id"], row["episode"]) for row in played] != wanted:
        return "the episodes are not those of the plan"
    if any(row["advantage"] is None and row["end"] != "broken" for row in played):
        return "an episode was neither trained on nor dropped"
    return None


def engines_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The engines of the servers that a process has started."""
    engines = []
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "skyrl.tinker.engine" in child.cmdline():
                    engines.append(child)
    return engines


def moment(path: Path) -> str:
    """What the run's server is asked for at this moment."""
    database = path / "server" / "tinker.db"
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1.0)) as connection:
            rows = connection.execute("SELECT request_type FROM futures WHERE status = 'PENDING'").fetchall()
    except sqlite3.Error:
        return "starting"
    asked = {json.dumps(row[0]).strip('"').lower() for row in rows}
    for kind in ("save_weights", "forward_backward", "optim_step", "save_weights_for_sampler", "sample"):
        if kind in asked:
            return kind
    return "between requests" if (path / "metrics.jsonl").exists() else "starting"


if __name__ == "__main__":
    sys.exit(0 if main(tyro.cli(Config)) else 1)
