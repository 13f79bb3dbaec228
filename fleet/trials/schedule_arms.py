"""The arms of a schedule: rates and assumptions from an observed run, or from a TOML file."""

import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from fleet.formatting import count, duration
from fleet.models import Run
from fleet.trials.observed import Observed, compiles_of, loads_of
from telemetry.errors import FieldError
from telemetry.statistics.forecast import (
    ASSUMED_OUTAGE_ERROR_LOG,
    ASSUMED_OUTAGE_S,
    EXTRA_NODE_DAYS,
    LEAST_SEEN,
    NORMAL_QUANTILE,
    ArmRates,
    Rate,
    Uncertainty,
    spread_log,
)

USUAL_CHECKPOINT_S = 3_600.0
LEAST_STEPS = 20


# A 95 % interval; None: unknown.
Ends = tuple[float | None, float | None]


class Assumption(msgspec.Struct, frozen=True):
    """One assumed figure: its value, its 95 % interval if any, its source."""

    name: str
    value: float
    low: float | None
    high: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Planned:
    """One arm, ready to be projected; ``seed`` seeds its random draws.

    ``price_basis`` is the basis of its price; empty: unknown. ``knows_compile``: whether the run
    reports its compiles.
    """

    label: str
    run: str | None
    instance_type: str
    habits: ArmRates
    doubt: Uncertainty
    assumptions: tuple[Assumption, ...]
    seed: int
    price_basis: str = ""
    is_simulated: bool = False
    knows_compile: bool = True


def planned_of(run: Run, seen: Observed, *, label: str = "", field: str = "run") -> Planned:
    """Derive an arm from what was observed of a run.

    Raises FieldError where it has no price, or too few steps to know its pace.
    """
    if not run.usd_per_hour:
        raise FieldError(field, f"{run} has no price; set one for {run.instance_type}")
    if seen.tokens_per_s is None or seen.n_steps < LEAST_STEPS:
        raise FieldError(
            field,
            f"{run} has {count(seen.n_steps)} settled steps whose tokens were counted; "
            f"let it train {LEAST_STEPS} or more",
        )
    compiles_s, loads_s = _times(seen)
    doubt = Uncertainty(
        seen.pace_error_log,
        Rate(seen.n_failures, seen.node_days, extra_exposure=EXTRA_NODE_DAYS),
        Rate(seen.n_recompiles, seen.run_days, extra=0.0),
        compile_error_log=spread_log(compiles_s, of_next=True),
        load_error_log=spread_log(loads_s, of_next=True),
        checkpoint_error_log=seen.checkpoint_error_log,
        outage_error_log=(spread_log(seen.outages_s, of_next=False) or ASSUMED_OUTAGE_ERROR_LOG),
    )
    habits = ArmRates(
        n_nodes=run.n_nodes,
        usd_per_hour=run.usd_per_hour,
        tokens_per_s=seen.tokens_per_s,
        checkpoint_s_per_hour=seen.checkpoint_s_per_hour,
        checkpoint_every_s=seen.checkpoint_every_s or USUAL_CHECKPOINT_S,
        compile_s=_mean(compiles_s),
        load_s=_mean(loads_s),
        warm_up_s=seen.warm_up_s,
        failures_per_node_day=doubt.failures.mean if doubt.failures else 0.0,
        recompiles_per_day=doubt.recompiles.mean if doubt.recompiles else 0.0,
        outage_s=_mean(seen.outages_s) or ASSUMED_OUTAGE_S,
    )
    return Planned(
        label=label or run.name,
        run=run.name,
        instance_type=run.instance_type,
        habits=habits,
        doubt=doubt,
        assumptions=_assumptions(run, seen, habits, doubt),
        seed=run.pk,
        price_basis=run.price[1],
        is_simulated=run.is_simulated,
        knows_compile=seen.compile_s is not None,
    )


def _times(seen: Observed) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """List the seconds of each observed compile and loading; a plan has one of each."""
    first, *more = seen.starts or (None,)
    others = [*more, *seen.alike]
    if first is None or seen.is_compile_planned:
        return tuple(filter(None, (seen.compile_s,))), tuple(filter(None, (seen.load_s,)))
    return compiles_of(first, others), loads_of(first, others)


def _mean(values: tuple[float, ...]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def with_failures(planned: Planned, per_node_day: float) -> Planned:
    """Replace the observed rate of failures with a given one."""
    given = Assumption("failures_per_node_day", per_node_day, None, None, "given")
    return replace(
        planned,
        habits=replace(planned.habits, failures_per_node_day=per_node_day),
        doubt=replace(planned.doubt, failures=None),
        assumptions=tuple(
            given if assumption.name == given.name else assumption
            for assumption in planned.assumptions
        ),
    )


def _assumptions(
    run: Run, seen: Observed, habits: ArmRates, doubt: Uncertainty
) -> tuple[Assumption, ...]:
    name, n_saved = run.name, seen.n_checkpoints
    how = "assumed: simulated" if run.is_simulated else "measured"
    # A simulated pace is assumed by the step model and has no interval.
    pace_error_log = None if run.is_simulated else doubt.pace_error_log
    paced = f"{how} on {name}, {duration(seen.hours * 3600)} of settled steps"
    if doubt.pace_error_log is None and not run.is_simulated:
        paced = f"{paced}; too few for an interval"
    if n_saved:
        steps = "one step" if n_saved == 1 else f"{count(n_saved)} steps"
        saved = every = f"{how} on {name}, {steps} with a checkpoint"
    else:
        saved = f"no checkpoint was observed on {name}: none is assumed"
        every = "assumed: an hour, as no checkpoint was observed"
    compiles_s, loads_s = _times(seen)
    if seen.is_compile_planned:
        compiled = f"{name}'s plan: one figure, no interval"
    elif seen.compile_s is None:
        compiled = f"not reported by {name}: its whole start counts as loading"
    elif not seen.compile_s:
        compiled = f"{name} found all its graphs in the cache"
    else:
        compiled = f"measured on {name}, before its first step; {_seen(len(compiles_s))}"
    loaded = f"the rest until {name}'s first step; {_seen(len(loads_s))}"
    warm = f"{name}: extra time of its first steps, compared with settled ones"
    failures = doubt.failures or Rate(0, 0.0)
    failed = f"{count(seen.n_failures)} observed" if seen.n_failures else "none observed"
    failed = (
        f"{failed} on {name} in {seen.node_days:.1f} node-days; half a failure in "
        f"{EXTRA_NODE_DAYS:g} node-days is added, since failures may still come"
    )
    n_outages = len(seen.outages_s)
    out = (
        f"measured on {name}, mean of {count(n_outages)}"
        f"{'' if n_outages >= LEAST_SEEN else '; their spread is assumed'}"
        if n_outages
        else "assumed, none observed: 10 min until a collective gives up, 5 to replace the node"
    )
    if seen.n_recompiles and doubt.recompiles:
        why = f"{count(seen.n_recompiles)} observed on {name} in {seen.run_days:.1f} days"
        rate = doubt.recompiles
        recompiled = Assumption("recompiles_per_day", rate.mean, *rate.interval, why)
    else:
        why = f"none observed on {name} in {seen.run_days:.1f} days, and none assumed"
        recompiled = Assumption("recompiles_per_day", 0.0, None, None, why)

    def assumed(figure: str, error_log: float | None, basis: str) -> Assumption:
        value = float(getattr(habits, figure))
        ends: Ends = (None, None) if error_log is None else pace_ends(value, error_log)
        return Assumption(figure, value, *ends, basis)

    return (
        Assumption("usd_per_hour", run.usd_per_hour, None, None, f"{name}: {run.price[1]}"),
        assumed("tokens_per_s", pace_error_log, paced),
        assumed("checkpoint_s_per_hour", doubt.checkpoint_error_log, saved),
        assumed("checkpoint_every_s", None, every),
        assumed("compile_s", doubt.compile_error_log, compiled),
        assumed("load_s", doubt.load_error_log, loaded),
        assumed("warm_up_s", None, warm),
        Assumption("failures_per_node_day", failures.mean, *failures.interval, failed),
        recompiled,
        assumed("outage_s", doubt.outage_error_log, out),
    )


def _seen(n: int) -> str:
    if n < LEAST_SEEN:
        return "one observation" if n < 2 else f"mean of {n} observations, too few for an interval"
    return f"mean of {count(n)} observations, of this run and similar runs"


def pace_ends(pace: float, error_log: float) -> tuple[float, float]:
    """95 % interval of a pace or a time."""
    factor = math.exp(NORMAL_QUANTILE * error_log)
    return pace / factor, pace * factor


MOST_BYTES = 100_000
# The figures of an arm that a file gives by name.
NAMES = tuple(name for name in ArmRates.__slots__ if name not in ("n_nodes", "unlucky_ratio"))
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
PositiveAmount = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class GivenArm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One arm of a file, in the units of `telemetry.statistics.forecast.ArmRates`.

    ``tokens_per_s_error_ratio`` is the standard error of the pace: 0.02 for 2 %.
    """

    label: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    nodes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    usd_per_hour: PositiveAmount
    tokens_per_s: PositiveAmount
    tokens_per_s_error_ratio: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    checkpoint_s_per_hour: Annotated[float, msgspec.Meta(ge=0, lt=3600)] = 0.0
    checkpoint_every_s: PositiveAmount = 3_600.0
    compile_s: Amount = 0.0
    load_s: Amount = 0.0
    warm_up_s: Amount = 0.0
    failures_per_node_day: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    recompiles_per_day: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    outage_s: Amount = 0.0


class ArmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: one arm, or a baseline and a candidate."""

    arm: Annotated[tuple[GivenArm, ...], msgspec.Meta(min_length=1, max_length=2)]


def arms_from_file(path: Path) -> tuple[Planned, ...]:
    """Read one arm, or a baseline and a candidate.

    Raises FieldError where the file or a figure in it is invalid.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise FieldError("figures", f"{path}: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise FieldError("figures", f"{path} is too long for a file of two arms")
    try:
        given = msgspec.convert(tomllib.loads(text.decode()), ArmFile)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FieldError("figures", f"{path} is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        # Name the field first, as in the file: ``arm[0].nodes``.
        rule, _, place = str(error).partition(" - at `$.")
        message = f"{place.rstrip('`')}: {rule}" if place else rule
        raise FieldError("figures", message) from error
    planned = []
    for seed, arm in enumerate(given.arm):
        figures = {name: float(getattr(arm, name)) for name in NAMES}
        ends: dict[str, Ends] = {}
        if error_ratio := arm.tokens_per_s_error_ratio:
            ends["tokens_per_s"] = pace_ends(arm.tokens_per_s, error_ratio)
        planned.append(
            Planned(
                label=arm.label,
                run=None,
                instance_type="",
                habits=ArmRates(n_nodes=arm.nodes, **figures),
                doubt=Uncertainty(error_ratio or None),
                assumptions=tuple(
                    Assumption(name, value, *ends.get(name, (None, None)), "given")
                    for name, value in figures.items()
                ),
                seed=seed,
            )
        )
    return tuple(planned)
