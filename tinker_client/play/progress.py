"""Progress of episodes, as a bar and in words."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tinker_client.connection.waiting import duration
from tinker_client.play.records import EpisodeRecord


def episode_progress(console: Console) -> Progress:
    """The progress display that a `Bar` is a line of; hidden where output is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes, {task.fields[turns]} turns, {task.fields[successes]} solved"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Bar:
    """A line of progress: episodes that ended of those begun, turns, and how many were solved."""

    def __init__(self, progress: Progress, label: str, episodes: int = 0) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=episodes, turns=0, successes=0)
        self._begun, self._ended = episodes, 0
        self._turns = self._solved = 0
        self._playing: dict[int, tuple[EpisodeRecord, float]] = {}  # by identity: and since when
        self._lost = 0
        self._last_error = ""

    def in_words(self) -> str:
        """What a wait is for, such as `31 of 32 episodes, the oldest 9 m 40 s in turn 12`."""
        words = f"{self._ended} of {self._begun} episodes"
        playing = list(self._playing.values())  # a copy: they change on another thread
        if playing:
            oldest, began = min(playing, key=lambda episode: episode[1])
            words += f", the oldest {duration(time.monotonic() - began)} in turn {len(oldest.turns) + 1}"
        if self._lost:
            words += f"; {self._lost} turns lost so far, the last one with {self._last_error}"
        return words

    def begins(self, episode: EpisodeRecord) -> None:
        """Note that an episode begins to be played."""
        self._playing[id(episode)] = episode, time.monotonic()

    def begin(self, label: str, *, done_with: int) -> None:
        """Start counting under a new label, without the `done_with` episodes that the label before was about."""
        self._begun -= done_with
        self._ended -= done_with
        self._turns = self._solved = 0
        self._progress.reset(self._task)
        self._progress.update(self._task, description=label)
        self._show()

    def expect(self, episodes: int) -> None:
        """Count more episodes as begun."""
        self._begun += episodes
        self._show()

    def turn(self) -> None:
        """Count a turn."""
        self._turns += 1
        self._show()

    def lost_turn(self, error: str) -> None:
        """Note a turn that the server failed."""
        self._lost += 1
        self._last_error = " ".join(error.split())[:200]

    def ended(self, episode: EpisodeRecord) -> None:
        """Count an episode that has ended."""
        del self._playing[id(episode)]
        self._ended += 1
        self._solved += episode.end == "success"
        self._show()

    def _show(self) -> None:
        self._progress.update(
            self._task, total=self._begun, completed=self._ended, turns=self._turns, successes=self._solved
        )
