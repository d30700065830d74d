"""`python -m tinker_client health RUN_DIR`: what a run's metrics warn of."""

from pathlib import Path

import tyro
from rich.console import Console

from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.health import check
from tinker_client.run_dir import read_rows


def health(run_dir: tyro.conf.Positional[Path]) -> None:
    """What a GRPO run's metrics warn of, and what to try. The run may be finished or going on.

    Args:
        run_dir: A run directory of train_grpo.py.
    """
    rows = read_rows(run_dir / "metrics.jsonl")
    if not any("group/mixed" in row for row in rows):
        raise UserError(f"{run_dir} holds no metrics of train_grpo.py: give its run directory")
    warnings = check(rows)
    console = Console(highlight=False, soft_wrap=True)
    for warning in warnings:
        console.print(str(warning), style="yellow", markup=False)
    if not warnings:
        console.print(f"nothing to warn of in {len(rows)} steps", markup=False)


if __name__ == "__main__":
    with exit_on_user_error():
        tyro.extras.subcommand_cli_from_dict(
            {"health": health}, prog="python -m tinker_client", description="Looks at run directories."
        )
