"""What goes wrong in GRPO runs, said in plain language: a pure function over the rows of a metrics.jsonl."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Row = Mapping[str, Any]

WINDOW = 3  # steps that a trend is read from: the first ones against the last ones


@dataclass(frozen=True)
class HealthWarning:
    """step: at which it began to hold. advice: what to try."""

    step: int
    name: str
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"warning at step {self.step}, {self.name}: {self.finding}. {self.advice}"


def check(rows: Sequence[Row]) -> list[HealthWarning]:
    """Every warning of a run, each where it began; one that went away and came back is there again."""
    return [warning for end in range(1, len(rows) + 1) for warning in check_last(rows[:end])]


def check_last(rows: Sequence[Row]) -> list[HealthWarning]:
    """The warnings that begin with the last of the rows."""
    return [
        HealthWarning(int(rows[-1]["step"]), name, *found)
        for name, rule in RULES.items()
        if (found := rule(rows)) and not (len(rows) > 1 and rule(rows[:-1]))
    ]


Finding = tuple[str, str] | None


def no_mixed_groups(rows: Sequence[Row]) -> Finding:
    last = rows[-WINDOW:]
    if len(last) < WINDOW or any(row.get("group/mixed", 1) or "tokens/trained" in row for row in last):
        return None
    success = fmean(row.get("reward/mean", 0.0) for row in last)
    finding = f"no group of the last {WINDOW} steps had both outcomes, so nothing was learnt (reward {success:.2f})"
    if success < 0.5:
        return finding, (
            "The tasks are too hard: take shallower --depths, start from an SFT run with --init, raise --group-size or "
            "give --dynamic-sampling"
        )
    return finding, "The tasks are too easy: take deeper --depths"


def sampler_mismatch(rows: Sequence[Row]) -> Finding:
    trained = [row for row in rows if "policy/kl_sampler_trainer_k3" in row]
    if len(trained) != 1 or trained[0].get("staleness/max", 0) > 0 or trained[0] is not rows[-1]:
        return None
    divergence = _number(trained[0], "policy/kl_sampler_trainer_k3")
    if divergence < 0.01:
        return None
    return (
        f"before any update sampler and trainer already give other logprobs (KL {divergence:.3g}, about 0 expected)",
        "Both must run the same weights: check that the server syncs the adapter (merge_lora false on Megatron), that "
        "--tokenizer is the model's, and the server's temperature",
    )


def entropy_collapse(rows: Sequence[Row]) -> Finding:
    before, now = _trend(rows, "policy/entropy")
    if not now < before / 4:
        return None
    return (
        f"the entropy of the policy fell from {before:.3g} to {now:.3g} nats a token",
        "It stops exploring: lower --lr, raise --clip-high (1.28), or stop at an earlier checkpoint",
    )


def policy_explodes(rows: Sequence[Row]) -> Finding:
    divergence = _number(rows[-1], "policy/kl_sampler_trainer_k3")
    highest, lowest = _number(rows[-1], "policy/ratio_max"), _number(rows[-1], "policy/ratio_min", 1.0)
    if divergence < 0.1 and highest < 100 and lowest > 0.001:
        return None
    return (
        f"the policy is far from the one that sampled (KL {divergence:.3g}, ratios {lowest:.3g} to {highest:.3g})",
        "Lower --lr or --max-staleness, and go back to a checkpoint from before",
    )


def cut_off_while_rising(rows: Sequence[Row]) -> Finding:
    shares = [
        {**row, "share": row["episode/cut_off_replies"] / row["episode/turns"]}
        for row in rows
        if row.get("episode/turns")
    ]
    (before, now), (reward_before, reward) = _trend(shares, "share"), _trend(shares, "reward/mean")
    if not (now > before + 0.1 and reward > reward_before):
        return None
    return (
        f"success rises while more replies are cut off at the token cap: {before:.0%} of them at first, {now:.0%} now",
        "Replies grow into the cap: raise --max-reply-tokens, or fine-tune on shorter replies first",
    )


def repeated_call(rows: Sequence[Row]) -> Finding:
    last = [row["episode/repeated_share"] for row in rows[-WINDOW:] if "episode/repeated_share" in row]
    if len(last) < WINDOW or fmean(last) < 0.5:
        return None
    return (
        f"{fmean(last):.0%} of all turns make a call that was already made in the episode",
        "The policy goes round in circles: look at the episodes, lower --lr, or fine-tune on demonstrations that "
        "recover from mistakes (python -m sft_data --recovery)",
    )


def echo_trap(rows: Sequence[Row]) -> Finding:
    before, now = _trend(rows, "group/reward_std")
    if not now < before / 4 or fmean(row.get("reward/mean", 0.0) for row in rows[-WINDOW:]) > 0.9:
        return None
    return (
        f"the rewards of a group differ less and less: their standard deviation was {before:.2g} and is {now:.2g}",
        "This is the echo trap (RAGEN, Wang et al. 2025): mix easier and harder --depths, give --dynamic-sampling, "
        "raise --group-size or lower --lr",
    )


RULES: dict[str, Callable[[Sequence[Row]], Finding]] = {
    "no mixed groups": no_mixed_groups,
    "sampler and trainer disagree": sampler_mismatch,
    "entropy collapse": entropy_collapse,
    "exploding ratio or KL": policy_explodes,
    "success rises with cut-off replies": cut_off_while_rising,
    "one call over and over": repeated_call,
    "echo trap": echo_trap,
}


def _trend(rows: Sequence[Row], name: str) -> tuple[float, float]:
    """The mean of a metric over the first and over the last steps; NaN, which no comparison holds for, if too few."""
    values = [_number(row, name) for row in rows if name in row]
    if len(values) < 2 * WINDOW:
        return math.nan, math.nan
    return fmean(values[:WINDOW]), fmean(values[-WINDOW:])


def _number(row: Row, name: str, default: float = 0.0) -> float:
    """A metric of a row; a null in the file was a number that is not finite."""
    value = row.get(name, default)
    return math.inf if value is None else float(value)
