"""TextCraft-Synth as a turn-by-turn game. It knows no model, no tokens and no network."""

from textcraft.episode import Episode, Turn
from textcraft.world import Task, load_tasks

__all__ = ["Episode", "Task", "Turn", "load_tasks"]
