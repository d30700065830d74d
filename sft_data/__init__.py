"""Demonstrations: the oracle's knowledge turned into model replies. Text only, no model, no tokens."""

from sft_data.demonstrator import demonstrate
from sft_data.mistakes import Mistakes
from sft_data.procedure import ROUNDS, Procedure

__all__ = ["ROUNDS", "Mistakes", "Procedure", "demonstrate"]
