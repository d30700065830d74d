"""Playing episodes and keeping them, which the scripts do not."""

from collections.abc import Sequence

from textcraft import Task
from tinker_client.connection.alive import Liveness
from tinker_client.play import rollout
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.environment import ENVIRONMENTS
from tinker_client.play.gate import Gate
from tinker_client.play.records import EpisodeRecord
from tinker_client.play.rollout import PlayConfig, Policy


def play_config(template: ChatTemplate, **settings: object) -> PlayConfig:
    """TextCraft-Synth with room for whole episodes of easy tasks, but for what `settings` say."""
    usual = {"max_turns": 20, "max_reply_tokens": 256, "temperature": 1.0, "context_length": 4096, "seed": 0}
    return PlayConfig(**{"environment": ENVIRONMENTS["textcraft"], "template": template, **usual, **settings})


def play(
    tasks: Sequence[Task], rollouts: int, policy: Policy, config: PlayConfig, **options: object
) -> list[EpisodeRecord]:
    """`rollout.play`, and the episodes ordered by group, then by episode. All turns are in flight at once."""
    episodes: list[EpisodeRecord] = []
    usual = {"on_episode": episodes.append, "liveness": Liveness()}
    rollout.play(tasks, rollouts, policy, config, Gate(None), **{**usual, **options})
    return sorted(episodes, key=lambda episode: (episode.group, episode.episode))
