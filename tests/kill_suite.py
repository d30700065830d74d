"""Kills scripts and servers at random moments, resumes, and counts what survived; on the real server, for an hour.

    python -m tests.kill_suite --out /tmp/kills                     # 30 kills of scripts, 8 of servers, 6 faults
    python -m tests.kill_suite --out /tmp/kills --kills 4 --server-kills 0 --faults

Ends with `kills survived / tried`, and with exit status 1 unless all did. --out keeps every run directory.

What a run must be to count as survived: its steps have no gap, each is there once, and the last one is saved; GRPO has
taken the plan's tasks in order, each episode once; SFT has the losses of an undisturbed run, and its last state gives
the same logprobs; an evaluation has the same episodes.

The moments. One kill in five comes at a random moment of the start (Python, the server, the model), three at a random
one of the work that is left after it, as long as an undisturbed run took for that. Saving a state takes a fifth of a
second, which random moments hardly ever hit: so one kill in five (of training runs) waits for the server's database
to hold a request to save, and comes up to 0.3 s later, which is before, during or just after the save.
"""

import itertools
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from rich.console import Console

from tests.fault_proxy import KINDS, Kind, faulty
from tests.killing import ended, moment, now, part_of, wait_until
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.connection.engines import TorchEngine
from tinker_client.connection.local_server import LocalServer
from tinker_client.connection.local_state import import_state
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import EXIT_SERVER_ERROR, EXIT_USER_ERROR
from tinker_client.play.chat import ChatTemplate
from tinker_client.run.jsonl import read_rows
from tinker_client.run.run_dir import resolve_state
from tinker_client.train.datums import REDUCTION, supervised_batch
from tinker_client.train.demonstrations import read_demonstrations, tokenize
from tinker_client.train.updates import forward

REPOSITORY = Path(__file__).resolve().parents[1]
PLAY = "--depths 2 --max-turns 2 --max-reply-tokens 16"
GRPO = f"train_grpo.py --env tests.coin_game:GAME {PLAY} --steps 6 --groups 2 --group-size 4 --lr 1e-3 --save-every 2"
SCRIPTS = {
    "sft": "train_sft.py --data {data} --rank 8 --epochs 2 --batch-size 4 --lr 1e-3 --save-every 2",
    "grpo": f"{GRPO} --max-staleness 0",
    "grpo_ahead": f"{GRPO} --max-staleness 2",
    "evaluate": f"evaluate.py {PLAY} --limit 12 --rollouts 4",
}
Victim = Literal["script", "engine", "api"]
AIMS = ("working", "saving", "working", "starting", "working")
TOLERANCE = 1e-4  # between a loss or logprob of a run that was killed and of the undisturbed one
ATTEMPTS = 20  # of a run whose server misbehaves, before it counts as lost


@dataclass(frozen=True)
class Config:
    """How often what is killed."""

    out: Path
    """Folder for the runs; what it holds is deleted."""
    kills: int = 30
    """SIGKILLs of scripts, dealt out to them in turn."""
    server_kills: int = 8
    """SIGKILLs of their server, of its engine and of its API in turn, dealt out among those of the scripts."""
    faults: tuple[Kind, ...] = KINDS[1:]
    """What a proxy does to 5 % of the requests of a synchronous GRPO run, one after the other."""
    kills_a_run: int = 5
    """Kills of one run, at most."""
    seed: int = 0
    """Decides the moments."""


def main(config: Config) -> bool:
    """Whether all runs survived."""
    shutil.rmtree(config.out, ignore_errors=True)
    config.out.mkdir(parents=True)
    suite = Suite(config.out.resolve(), random.Random(config.seed), config.kills_a_run)
    suite.undisturbed()
    suite.kill_all(config.kills, config.server_kills)
    if config.faults:
        suite.misbehave(config.faults)
    suite.compare_logprobs()
    suite.report()
    return suite.survived() == suite.tried


class Suite:
    """The runs, and what became of them.

    startup_s, work_s: of an undisturbed run of each script, up to its first request and from there to its last file.
    tried: kills, and runs with faults. fine: the same, by each run that has passed its checks so far.
    """

    def __init__(self, out: Path, rng: random.Random, kills_a_run: int) -> None:
        self.out, self.rng, self.kills_a_run = out, rng, kills_a_run
        self.console = Console(highlight=False, soft_wrap=True)
        self.data = out / "demonstrations.jsonl"
        self.began = time.monotonic()
        self.startup_s: dict[str, float] = {}
        self.work_s: dict[str, float] = {}
        self.aims = itertools.cycle(AIMS)
        self.victims: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.fine: dict[Path, Counter[str]] = {}

    def survived(self) -> Counter[str]:
        """What of `tried`."""
        return sum(self.fine.values(), Counter())

    def undisturbed(self) -> None:
        """One run of each script, to compare with and to know how long it takes."""
        make = "-m sft_data --depths 2 --count 12 --recovery 0 --wording terse"
        make_it = [sys.executable, *make.split(), "--out", self.data]
        subprocess.run(make_it, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        for name in SCRIPTS:
            path, began = self.whole(name), time.time()
            process, since = self.start(name, path), now()
            wait_until(process, lambda path=path, since=since: moment(path, since) != "starting")
            up = time.time()
            if (status := ended(process)) != 0:
                sys.exit(f"the undisturbed run of {name} failed ({status}): see {path}.log")
            last = max(file.stat().st_mtime for file in path.iterdir() if file.is_file())
            self.startup_s[name], self.work_s[name] = up - began, last - up
            self.say(f"{name}: undisturbed, {up - began:.0f} s to start and {last - up:.0f} s of work")

    def start(self, name: str, path: Path, *flags: str) -> subprocess.Popen[bytes]:
        """The script, going on with what there is."""
        command = [*SCRIPTS[name].format(data=self.data).split(), "--run-dir", str(path), "--resume", *flags]
        with path.with_name(path.name + ".log").open("ab") as log:
            return subprocess.Popen([sys.executable, *command], cwd=REPOSITORY, stdout=log, stderr=log)

    def kill_all(self, scripts: int, servers: int) -> None:
        """So many kills of scripts and of their servers, several a run, until all have been."""
        engines = -(-servers // 2)
        victims: list[Victim] = ["script"] * scripts + ["engine"] * engines + ["api"] * (servers - engines)
        self.rng.shuffle(victims)
        at_once = min(self.kills_a_run, -(-len(victims) // len(SCRIPTS)))
        for number, name in enumerate(itertools.cycle(SCRIPTS)):
            if not victims:
                return
            killed = self.survive(name, self.out / f"{number}_{name}", victims[:at_once])
            victims = victims[killed:]

    def survive(self, name: str, path: Path, victims: Sequence[Victim]) -> int:
        """A run that loses these one after another, goes on to its end and is then compared with the undisturbed one.

        Returns how many of the kills there were: fewer if the run reached its end before.
        """
        began = time.monotonic()
        moments: list[str] = []
        problems: list[str] = []
        for victim in victims:
            when = self.kill(name, path, victim, problems)
            if when is None:
                break
            moments.append(f"{victim} {when}")
            self.moments[when] += 1
            self.victims[victim] += 1
        if status := ended(self.start(name, path)):
            problems.append(f"exit status {status}")
        problems = problems or self.problems(name, path)
        self.judge(path, {"kills": len(moments)}, f"killed {', '.join(moments) or 'never'}", problems, began)
        return len(moments)

    def kill(self, name: str, path: Path, victim: Victim, problems: list[str]) -> str | None:
        """Start the script, kill it or its server and return in which moment; None if it reached its end before."""
        process, since = self.start(name, path), now()
        aim = next(self.aims)
        if aim == "starting":
            wait_until(process, seconds=self.rng.uniform(0, self.startup_s[name]))
        else:
            wait_until(process, lambda: moment(path, since) != "starting")
            if aim == "saving" and name != "evaluate":
                wait_until(process, lambda: moment(path, since) == "saving", every_s=0.005)
                wait_until(process, seconds=self.rng.uniform(0, 0.3))
            else:
                wait_until(process, seconds=self.rng.uniform(0, self.share_left(name, path) * self.work_s[name]))
        if victim != "script":
            wait_until(process, lambda: part_of(process, victim) is not None)
        doomed = process if victim == "script" else part_of(process, victim)
        if process.poll() is not None or doomed is None:
            return None
        when = moment(path, since)
        doomed.send_signal(signal.SIGKILL)
        status = ended(process)
        if victim != "script" and status not in (0, EXIT_SERVER_ERROR, EXIT_USER_ERROR):
            problems.append(f"exit status {status} after the {victim} was killed {when}")
        return when

    def share_left(self, name: str, path: Path) -> float:
        """How much of its work a run still has to do."""
        runs = (path, self.whole(name))
        if name == "evaluate":
            done, all_of_it = (len(read_rows(run / "episodes.jsonl")) for run in runs)
        else:
            done, all_of_it = (max([0, *steps_of(run, "checkpoints")]) for run in runs)
        return 1 - done / all_of_it

    def whole(self, name: str) -> Path:
        """The undisturbed run."""
        return self.out / f"{name}_whole"

    def misbehave(self, kinds: Sequence[Kind]) -> None:
        """For each kind of fault a GRPO run whose requests suffer from it, started again until it is done."""
        with LocalServer(self.out / "server", TINY_MODEL, TorchEngine()) as server:
            server.wait_until_ready()
            for kind in kinds:
                path, began = self.out / f"grpo_{kind}", time.monotonic()
                with faulty(server.base_url, [kind]) as proxy:
                    flags = ("--base-url", proxy.url, "--engine", "torch")
                    starts, going_on = 1, (EXIT_SERVER_ERROR, EXIT_USER_ERROR)
                    while (status := ended(self.start("grpo", path, *flags))) in going_on and starts < ATTEMPTS:
                        starts += 1
                self.faults[kind] += proxy.faults.total()
                faults = f"{proxy.faults.total()} of {proxy.requests} requests in {starts} starts"
                problems = [f"exit status {status}"] if status else self.problems("grpo", path)
                self.judge(path, {"runs with faults": 1}, faults, problems, began)

    def judge(self, path: Path, tried: dict[str, int], what: str, problems: Sequence[str], began: float) -> None:
        """Count what was tried, and say what became of it."""
        self.tried.update(tried)
        if not problems:
            self.fine[path] = Counter(tried)
        outcome = "; ".join(problems) or "as if nothing had happened"
        self.say(f"{path.name}: {what}, {time.monotonic() - began:.0f} s: {outcome}")

    def problems(self, name: str, path: Path) -> list[str]:
        """What differs from the undisturbed run."""
        runs = (path, self.whole(name))
        if name == "evaluate":
            episodes = [read_rows(run / "episodes.jsonl") for run in runs]
            return [] if episodes[0] == episodes[1] else ["other episodes"]
        steps = [steps_of(run, "metrics") for run in runs]
        if steps[0] != steps[1] or steps[0] != list(range(1, len(steps[0]) + 1)):
            return [f"steps {steps[0]}"]
        last = [steps_of(run, "checkpoints")[-1] for run in runs]
        if last[0] != last[1]:
            return [f"the last saved step is {last[0]}"]
        if name != "sft":
            return consumed_once(path)
        losses = [[row["loss/train"] for row in read_rows(run / "metrics.jsonl")] for run in runs]
        return [] if np.allclose(*losses, rtol=0, atol=TOLERANCE) else [f"losses {losses[0]}"]

    def compare_logprobs(self) -> None:
        """Those of all demonstrations' replies under the last state of each SFT run and of the undisturbed one."""
        whole = self.whole("sft")
        killed = [run for run in self.fine if "sft" in run.name]
        if not killed:
            return
        states = {run: resolve_state(str(run)).state_path for run in (whole, *killed)}
        for run, state_path in states.items():
            import_state(state_path, run / "server", self.out / "logprobs")
        logprobs = {}
        with LocalServer(self.out / "logprobs", TINY_MODEL, TorchEngine()) as server:
            server.wait_until_ready()
            remote = BackendConfig(base_url=server.base_url, engine="torch")
            with connect(remote, self.out / "logprobs") as backend:
                conversations = tokenize(
                    [row.messages for row in read_demonstrations(self.data)],
                    ChatTemplate.of(backend),
                    backend.context_length,
                )
                batch = supervised_batch(conversations, REDUCTION[backend.kind])
                for run, state_path in states.items():
                    trainer = backend.training_client_from(state_path, with_optimizer=False)
                    logprobs[run] = np.concatenate(batch.action_logprobs(forward(backend, trainer, batch)))
                    backend.release(trainer)
        for run in killed:
            difference = float(np.abs(logprobs[run] - logprobs[whole]).max())
            self.say(f"{run.name}: its {len(logprobs[run])} logprobs differ by at most {difference:.2g}")
            if difference >= TOLERANCE:
                del self.fine[run]

    def report(self) -> None:
        """The last lines."""
        for name, counts in (("killed", self.victims), ("moments", self.moments), ("faults", self.faults)):
            self.say(f"{name}: {', '.join(f'{what} {n}' for what, n in counts.most_common()) or 'none'}")
        self.say(f"{time.monotonic() - self.began:.0f} s")
        for what in sorted(self.tried, reverse=True):
            self.say(f"{what} survived / tried: {self.survived()[what]} / {self.tried[what]}")

    def say(self, line: str) -> None:
        self.console.print(line)


def steps_of(path: Path, name: str) -> list[int]:
    """The steps that a file of a run directory tells of."""
    return [row["step"] for row in read_rows(path / f"{name}.jsonl")]


def consumed_once(path: Path) -> list[str]:
    """What is wrong with the groups that the steps of a GRPO run have taken: each must be the next one of the plan."""
    groups = int(read_rows(path / "metrics.jsonl")[-1]["plan/groups"])
    plan = [(row["step"], row["group"], row["task_id"]) for row in read_rows(path / "plan.jsonl")][:groups]
    played = [row for file in sorted((path / "episodes").glob("*.jsonl")) for row in read_rows(file)]
    wanted = [(*group, episode) for group in plan for episode in range(4)]
    if [(row["step"], row["group"], row["task_id"], row["episode"]) for row in played] != wanted:
        return ["the episodes are not those of the plan"]
    if any(row["advantage"] is None and row["end"] != "broken" for row in played):
        return ["an episode was neither trained on nor dropped"]
    return []


if __name__ == "__main__":
    sys.exit(0 if main(tyro.cli(Config)) else 1)
