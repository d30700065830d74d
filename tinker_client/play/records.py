"""What is kept of an episode: the row that an episodes file has of it, and its tokens for training."""

from dataclasses import asdict, dataclass, field
from typing import Any

from textcraft import Task
from tinker_client.play.chat import Conversation


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
    end: that of `textcraft.Episode`, or `out_of_context`, or `broken` (the server failed; `error` says how).
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
            "action_tokens": self.conversation.action_tokens,
            "turns": [asdict(turn) for turn in self.turns],
        }
