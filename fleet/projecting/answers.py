"""A schedule as JSON: what `manage.py project --json` prints; docs/schedule.md describes it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from fleet.projecting.planned import Assumption, Planned
from fleet.projecting.projecting import Projection, arms_of, at_equal_kinds, kinds_of
from fleet.templatetags.units import NBSP
from telemetry.project.curves import Curve, over_days

N_POINTS = 57


def as_json(
    found: Projection, planned: tuple[Planned, ...], *, reuses: Sequence[bool]
) -> dict[str, Any]:
    """Return a schedule as one object, with and without reuse as asked."""
    return {
        "days": found.days,
        "porting_usd": found.porting_usd,
        "tokens": found.tokens,
        "arms": [_arm(each) for each in planned],
        "scenarios": [
            msgspec.to_builtins(found.scenario(has_reuse=has_reuse))
            | {"curves": _curves(found, planned, has_reuse=has_reuse)}
            for has_reuse in reuses
        ],
        "reuse_saves": msgspec.to_builtins(found.reuse_saves),
    } | _price_kinds(found, planned, reuses=reuses)


def _price_kinds(
    found: Projection, planned: tuple[Planned, ...], *, reuses: Sequence[bool]
) -> dict[str, Any]:
    """Return on which terms the arms are paid, and what a schedule saves at equal ones.

    Nothing of one arm, or of figures given by hand, which say no terms.
    """
    kinds = kinds_of(planned)
    if kinds is None:
        return {}
    told = {
        "baseline": kinds.baseline,
        "candidate": kinds.candidate,
        "is_alike": kinds.is_alike,
        "at_equal": [
            {
                "kind": common.kind,
                "baseline_usd_per_node_hour": common.baseline.usd,
                "candidate_usd_per_node_hour": common.candidate.usd,
                "scenarios": [
                    {
                        "has_reuse": has_reuse,
                        "saved_usd": msgspec.to_builtins(way.saved_usd),
                        "break_even": msgspec.to_builtins(way.break_even),
                    }
                    for has_reuse in reuses
                    if (way := other.scenario(has_reuse=has_reuse))
                ],
            }
            for common, other in at_equal_kinds(found, planned)
        ],
    }
    return {"price_kinds": told}


def _arm(planned: Planned) -> dict[str, Any]:
    return {
        "label": planned.label,
        "run": planned.run,
        "instance_type": planned.instance_type or None,
        "nodes": planned.habits.n_nodes,
        "assumptions": [_plain(each) for each in planned.assumptions],
    }


def _plain(assumption: Assumption) -> dict[str, Any]:
    """Return an assumption with the spaces that machines expect."""
    told: dict[str, Any] = msgspec.to_builtins(assumption)
    return told | {"basis": assumption.basis.replace(NBSP, " ")}


def _curves(
    found: Projection, planned: tuple[Planned, ...], *, has_reuse: bool
) -> dict[str, Any] | None:
    """Return dollars by day: of the candidate, and of the baseline for the same tokens."""
    if len(planned) < 2:
        return None
    ways = arms_of(planned, days=found.days, porting_usd=found.porting_usd, has_reuse=has_reuse)
    baseline, candidate = ways.arms
    points = over_days(baseline, candidate, np.linspace(0, found.days, N_POINTS))
    return {
        "days": points.days.tolist(),
        "tokens": points.tokens.tolist(),
        "candidate": _curve(points.candidate),
        "baseline": _curve(points.baseline),
    }


def _curve(curve: Curve) -> dict[str, list[float]]:
    return {"usd": curve.usd.tolist(), "low": curve.low.tolist(), "high": curve.high.tolist()}
