"""Progress as a bar in a terminal or a notebook, as a line a minute in a log, and in words."""

import sys
import time
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from tqdm.auto import tqdm
from tqdm.std import tqdm as text_tqdm

from tinker_client.connection.alive import duration
from tinker_client.play.records import EpisodeRecord

_LOG_EVERY_S = 60.0


class _Lines(text_tqdm):  # type: ignore[misc]
    """A bar for a log: now and then a line of its own, instead of one that is written over."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        text = str(self) if msg is None else msg
        if text:
            self.fp.write(f"{text}\n")
            self.fp.flush()


def progress_bar(label: str, total: int, *, unit: str, done: int = 0) -> Any:
    """A tqdm bar on stderr, gone when it is closed; where stderr is a log, a line a minute."""
    if sys.stderr.isatty():
        return tqdm(desc=label, total=total, initial=done, unit=unit, leave=False)
    every = {"mininterval": _LOG_EVERY_S, "maxinterval": _LOG_EVERY_S, "delay": _LOG_EVERY_S}
    bar = tqdm if tqdm.__name__ == "tqdm_notebook" else _Lines
    return bar(desc=label, total=total, initial=done, unit=unit, leave=False, miniters=1, ascii=True, **every)


def say(text: str, *, style: str = "") -> None:
    """Print a line, in a terminal above the bars."""
    with text_tqdm.external_write_mode() if sys.stderr.isatty() else nullcontext():
        Console(highlight=False, soft_wrap=True).print(text, style=style, markup=False)


class EpisodeBar:
    """A line of progress: episodes that ended of those begun, turns, solved ones, the oldest turn, lost turns."""

    def __init__(self, label: str, episodes: int = 0) -> None:
        self._label = label
        self._begun, self._ended = episodes, 0
        self._turns = self._solved = 0
        self._playing: dict[int, tuple[EpisodeRecord, float]] = {}  # by identity: and since when
        self._lost = 0
        self._last_error = ""

    def __enter__(self) -> Self:
        self._bar = progress_bar(self._label, self._begun, unit="episode")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def in_words(self) -> str:
        """What a wait is for, such as `31 of 32 episodes, the oldest 9 m 40 s in turn 12`."""
        words = [f"{self._ended} of {self._begun} episodes", *self._oldest()]
        lost = f"; {self._lost} turns lost so far, the last one with {self._last_error}" if self._lost else ""
        return ", ".join(words) + lost

    def begins(self, episode: EpisodeRecord) -> None:
        """Note that an episode begins to be played."""
        self._playing[id(episode)] = episode, time.monotonic()

    def begin(self, label: str, *, done_with: int) -> None:
        """Start counting under a new label, without the `done_with` episodes that the label before was about."""
        self._begun -= done_with
        self._ended -= done_with
        self._turns = self._solved = 0
        self._bar.set_description(label, refresh=False)
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

    def _oldest(self) -> list[str]:
        playing = list(self._playing.values())  # a copy: they change on another thread
        if not playing:
            return []
        episode, began = min(playing, key=lambda entry: entry[1])
        return [f"the oldest {duration(time.monotonic() - began)} in turn {len(episode.turns) + 1}"]

    def _show(self) -> None:
        bar = self._bar
        bar.total = self._begun
        lost = [f"{self._lost} turns lost"] if self._lost else []
        counts = [f"{self._turns} turns", f"{self._solved} solved", *self._oldest(), *lost]
        bar.set_postfix_str(", ".join(counts), refresh=False)
        bar.update(self._ended - bar.n)  # draws no more often than every tenth of a second
