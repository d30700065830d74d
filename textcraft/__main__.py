"""`python -m textcraft facts`: the benchmark's figures that need no model."""

import json
import sys
from typing import Annotated

import tyro
from rich.console import Console

from textcraft.facts import facts, print_facts
from textcraft.world import BenchmarkError


def print_benchmark_facts(as_json: Annotated[bool, tyro.conf.arg(name="json")] = False) -> None:
    """How long an ideal run is, and how many tasks fit 75 and 150 turns, per split, difficulty and depth.

    Args:
        as_json: Print JSON instead of tables.
    """
    figures = facts()
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        print_facts(figures, Console())


def main() -> None:
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"facts": print_benchmark_facts},
            prog="python -m textcraft",
            description="TextCraft-Synth as a turn-by-turn game.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
