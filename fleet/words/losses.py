"""What an alert has cost, as a figure and as the sentence that says how it was come by."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from fleet.models import Alert
from fleet.templatetags.units import count, duration, seconds, usd
from fleet.words.wording import counted

# Steps differ by as much of themselves: a smaller loss is none.
NOISE_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Loss:
    """What an alert has cost: seconds of work, whole steps and dollars, and how that was found."""

    lost_s: float
    n_steps: float
    usd: float | None
    how: str

    @property
    def is_none(self) -> bool:
        """Whether nothing was lost beyond what steps differ by anyway."""
        return not self.lost_s

    @property
    def short(self) -> str:
        """Return it in a few words, for a row of a list."""
        if self.is_none:
            return "no step"
        steps = counted(self.n_steps, "step")
        return steps if self.usd is None else f"{usd(self.usd)}, {steps}"


def loss(alert: Alert) -> Loss | None:
    """Return what an alert has cost, as fleet/costs.py measured it; None where nobody can tell."""
    cost = alert.cost
    lost_s, span_s = _number(cost, "lost_s"), _number(cost, "span_s")
    n_steps, dollars = _number(cost, "n_steps"), _number(cost, "usd")
    if lost_s is None or span_s is None or n_steps is None:
        return None
    if lost_s <= NOISE_RATIO * span_s:
        lost_s, n_steps, dollars = 0.0, 0.0, None if dollars is None else 0.0
    return Loss(lost_s, n_steps, dollars, _how(cost))


def _number(cost: dict[str, Any], name: str) -> float | None:
    value = cost.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def _how(cost: dict[str, Any]) -> str:
    """Say how a loss was computed, with every figure that went into it."""
    span_s, paused_s = cost["span_s"], cost.get("paused_s", 0.0)
    n_done, usual_s = cost["n_done"], cost["usual_s"]
    before = f"the median of the {counted(cost['n_before'], 'step')} before"
    could = max(0.0, span_s - paused_s) / usual_s
    planned = ""
    if paused_s >= 1:
        planned = f" {duration(paused_s)} of checkpoints and evaluation are not counted."
    return (
        f"{counted(n_done, 'step')} ended in the {duration(span_s)} since the last healthy one; "
        f"at {seconds(usual_s)} each, {before}, there would have been {count(could)}."
        f"{planned}{_price(cost)}{_others(cost)}"
    )


def _price(cost: dict[str, Any]) -> str:
    per_hour = _number(cost, "usd_per_hour")
    if per_hour is None:
        return " No price is known for its nodes."
    return f" {counted(cost['n_nodes'], 'node')} cost {usd(per_hour)} an hour."


def _others(cost: dict[str, Any]) -> str:
    n_others = int(_number(cost, "n_others") or 0)
    if not n_others:
        return ""
    alerts, was = ("alert", "was") if n_others == 1 else ("alerts", "were")
    return (
        f" {n_others} other {alerts} of this run {was} open meanwhile: that loss is in here too."
    )
