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
    LEAST_SEEN,
    NORMAL_QUANTILE,
    ArmRates,
    Rate,
    Uncertainty,
    spread_log,
)

USUAL_CHECKPOINT_S = 3_600.0
LEAST_STEPS = 20
# Half a failure in so many node-days is added to the observed ones. That is twenty times the rate
# in the log of OPT-175B (some 35 restarts of 124 hosts in two months): cautious at first, and
# negligible after a few weeks.
EXTRA_NODE_DAYS = 5.0


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

    ``price_basis`` is the basis of its price; empty: unknown.
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


def planned_of(run: Run, seen: Observed, *, label: str = "", field: str = "run") -> Planned:
    """Derive an arm from what was observed of a run.

    Raises
    ------
    FieldError
        Where it has no price, or too few steps to know its pace.
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
            given if each.name == given.name else each for each in planned.assumptions
        ),
    )


def _assumptions(
    run: Run, seen: Observed, habits: ArmRates, doubt: Uncertainty
) -> tuple[Assumption, ...]:
    on = f"{run.name}, {duration(seen.hours * 3600)} of settled steps"
    how = "assumed: simulated" if run.is_simulated else "measured"
    return (
        Assumption("usd_per_hour", run.usd_per_hour, None, None, f"{run.name}: {run.price[1]}"),
        _pace(habits, doubt, f"{how} on {on}", is_assumed=run.is_simulated),
        *_checkpoints(run, seen, habits, doubt),
        *_starts(run, seen, habits, doubt),
        _failures(run, seen, doubt),
        _recompiles(run, seen, doubt),
    )


def _checkpoints(
    run: Run, seen: Observed, habits: ArmRates, doubt: Uncertainty
) -> tuple[Assumption, ...]:
    saved_s, basis = seen.checkpoint_s_per_hour, _saved(run, seen)
    ends = _ends(saved_s, doubt.checkpoint_error_log)
    every = basis if seen.n_checkpoints else "assumed: an hour, as no checkpoint was observed"
    return (
        Assumption("checkpoint_s_per_hour", saved_s, *ends, basis),
        Assumption("checkpoint_every_s", float(habits.checkpoint_every_s), None, None, every),
    )


def _starts(
    run: Run, seen: Observed, habits: ArmRates, doubt: Uncertainty
) -> tuple[Assumption, ...]:
    compiles_s, loads_s = _times(seen)
    compile_s, load_s = float(habits.compile_s), float(habits.load_s)
    compiled = _compiled(run, seen, len(compiles_s))
    loaded = f"the rest until {run.name}'s first step; {_seen(len(loads_s))}"
    warm = f"{run.name}: extra time of its first steps, compared with settled ones"
    return (
        Assumption("compile_s", compile_s, *_ends(compile_s, doubt.compile_error_log), compiled),
        Assumption("load_s", load_s, *_ends(load_s, doubt.load_error_log), loaded),
        Assumption("warm_up_s", seen.warm_up_s, None, None, warm),
    )


def _pace(habits: ArmRates, doubt: Uncertainty, basis: str, *, is_assumed: bool) -> Assumption:
    """Describe the pace; a simulated one is assumed by the step model and has no interval."""
    pace, error = float(habits.tokens_per_s), doubt.pace_error_log
    if is_assumed:
        return Assumption("tokens_per_s", pace, None, None, basis)
    if error is None:
        return Assumption("tokens_per_s", pace, None, None, f"{basis}; too few for an interval")
    return Assumption("tokens_per_s", pace, *pace_ends(pace, error), basis)


def _ends(value: float, error_log: float | None) -> tuple[float | None, float | None]:
    """95 % interval of a time; None where there are too few observations."""
    return (None, None) if error_log is None else pace_ends(value, error_log)


def _seen(n: int) -> str:
    if n < LEAST_SEEN:
        return "one observation" if n < 2 else f"mean of {n} observations, too few for an interval"
    return f"mean of {count(n)} observations, of this run and similar runs"


def pace_ends(pace: float, error_log: float) -> tuple[float, float]:
    """95 % interval of a pace or a time."""
    factor = math.exp(NORMAL_QUANTILE * error_log)
    return pace / factor, pace * factor


def _saved(run: Run, seen: Observed) -> str:
    if not seen.n_checkpoints:
        return f"no checkpoint was observed on {run.name}: none is assumed"
    steps = "one step" if seen.n_checkpoints == 1 else f"{count(seen.n_checkpoints)} steps"
    how = "assumed: simulated" if run.is_simulated else "measured"
    return f"{how} on {run.name}, {steps} with a checkpoint"


def _compiled(run: Run, seen: Observed, n: int) -> str:
    if seen.is_compile_planned:
        return f"{run.name}'s plan: one figure, no interval"
    if seen.compile_s is None:
        return f"not reported by {run.name}: its whole start counts as loading"
    if not seen.compile_s:
        return f"{run.name} found all its graphs in the cache"
    return f"measured on {run.name}, before its first step; {_seen(n)}"


def _failures(run: Run, seen: Observed, doubt: Uncertainty) -> Assumption:
    rate = doubt.failures or Rate(0, 0.0)
    low, high = rate.interval
    what = f"{count(seen.n_failures)} observed" if seen.n_failures else "none observed"
    basis = (
        f"{what} on {run.name} in {seen.node_days:.1f} node-days; half a failure in "
        f"{EXTRA_NODE_DAYS:g} node-days is added, since failures may still come"
    )
    return Assumption("failures_per_node_day", rate.mean, low, high, basis)


def _recompiles(run: Run, seen: Observed, doubt: Uncertainty) -> Assumption:
    rate = doubt.recompiles or Rate(0, 0.0, extra=0.0)
    if not seen.n_recompiles:
        basis = f"none observed on {run.name} in {seen.run_days:.1f} days, and none assumed"
        return Assumption("recompiles_per_day", 0.0, None, None, basis)
    low, high = rate.interval
    basis = f"{count(seen.n_recompiles)} observed on {run.name} in {seen.run_days:.1f} days"
    return Assumption("recompiles_per_day", rate.mean, low, high, basis)


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


class ArmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: one arm, or a baseline and a candidate."""

    arm: Annotated[tuple[GivenArm, ...], msgspec.Meta(min_length=1, max_length=2)]


def arms_from_file(path: Path) -> tuple[Planned, ...]:
    """Read one arm, or a baseline and a candidate.

    Raises
    ------
    FieldError
        Where the file or a figure in it is invalid.
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
    return tuple(_from_file(each, seed=i) for i, each in enumerate(given.arm))


def _from_file(given: GivenArm, *, seed: int) -> Planned:
    plain = msgspec.to_builtins(given)
    habits = ArmRates(
        n_nodes=given.nodes,
        **{name: float(plain[name]) for name in NAMES},
    )
    error = given.tokens_per_s_error_ratio
    low, high = pace_ends(given.tokens_per_s, error) if error else (None, None)
    return Planned(
        label=given.label,
        run=None,
        instance_type="",
        habits=habits,
        doubt=Uncertainty(error or None),
        assumptions=tuple(
            Assumption(
                name,
                float(plain[name]),
                low if name == "tokens_per_s" else None,
                high if name == "tokens_per_s" else None,
                "given",
            )
            for name in NAMES
        ),
        seed=seed,
    )
