"""The fixed procedure that every demonstration follows, as the rules in which its two rounds differ."""

from dataclasses import dataclass

from sft_data.wording import POST, Wording


@dataclass(frozen=True)
class Procedure:
    """Look up recipes breadth first, total each item top-down, then craft each item once, layer by layer."""

    lines_per_turn: int
    """Most plan lines in one reply; what does not fit continues in the next."""
    sorted_lookups: bool
    """Look-up lists go by name; otherwise in order of appearance in the last observation."""
    running_totals: bool
    """A share that adds to an earlier one shows the new total; otherwise an item's own line sums its shares."""
    layer_every_turn: bool
    """Every craft turn lists what is left of the layer; otherwise only the layer's opening does."""
    wording: Wording = POST


ROUNDS = {
    1: Procedure(lines_per_turn=8, sorted_lookups=True, running_totals=False, layer_every_turn=False),
    2: Procedure(lines_per_turn=5, sorted_lookups=False, running_totals=True, layer_every_turn=True),
}
"""Round 1 and round 2 of the post."""
