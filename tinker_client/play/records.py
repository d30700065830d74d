"""What is kept of an episode: the row that an episodes file has of it, and its tokens for training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from textcraft import tools
from tinker_client.play.chat import Conversation
from tinker_client.play.environment import Task


@dataclass(frozen=True)
class TurnRecord:
    """One turn as it is written to an episodes file."""

    reply: str
    observation: str
    kind: str
    policy_version: int
    prompt_tokens: int
    reply_tokens: int
    cut_off: bool


@dataclass
class EpisodeRecord:
    """One played episode.

    step: the training step it is planned for (with dynamic sampling an earlier one may train on it; the name of its
    episodes file says which); group: the index of its task within the step; episode: its index within the group.
    end: that of the game's episode, or `out_of_context`, or `broken` (the server failed; `error` says how).
    without_logprobs: how often a reply was lost because its logprobs were.
    advantage: what the step that trained on it made of it, at 0 nothing; None before, and of broken episodes.
    conversation: the tokens for training; not written.
    """

    task: Task
    step: int
    group: int
    episode: int
    conversation: Conversation
    turns: list[TurnRecord] = field(default_factory=list)
    end: str = "broken"
    reward: float = 0.0
    advantage: float | None = None
    error: str | None = None
    without_logprobs: int = 0

    def row(self) -> dict[str, Any]:
        """The episode as a row of an episodes file."""
        return {
            "task_id": self.task.id,
            "depth": self.task.depth,
            "difficulty": self.task.difficulty,
            "step": self.step,
            "group": self.group,
            "episode": self.episode,
            "end": self.end,
            "reward": self.reward,
            "advantage": self.advantage,
            "error": self.error,
            "without_logprobs": self.without_logprobs,
            "action_tokens": self.conversation.action_tokens,
            "turns": [asdict(turn) for turn in self.turns],
        }


def repeated(replies: Sequence[str]) -> list[bool]:
    """Whether each reply makes a call that one before it has made. Spaces, the order of ingredients and the text around
    a call make no difference. A reply without a call is compared as a whole."""
    seen: set[str] = set()
    again = []
    for reply in replies:
        call = _call(reply)
        again.append(call in seen)
        seen.add(call)
    return again


def _call(reply: str) -> str:
    # The last call: thoughts before the answer may try others.
    _, tag, rest = reply.rpartition("<tool>")
    call = tools.parse(tag + rest)
    if isinstance(call, tools.Craft):
        return repr((sorted(map(repr, call.ingredients.items())), tuple(call.target)))
    return "".join(rest.partition("</tool>")[0].split())
