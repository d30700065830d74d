"""Playing episodes and keeping them, which the scripts do not."""

from tinker_client.play import rollout
from tinker_client.play.records import EpisodeRecord


def play(*arguments, **options) -> list[EpisodeRecord]:
    """`rollout.play`, and the episodes ordered by group, then by episode."""
    episodes: list[EpisodeRecord] = []
    rollout.play(*arguments, **options, on_episode=episodes.append)
    return sorted(episodes, key=lambda episode: (episode.group, episode.episode))
