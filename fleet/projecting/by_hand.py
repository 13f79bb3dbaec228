"""Arms whose figures somebody gives in a TOML file, for hardware that nobody has run on yet."""

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from fleet.projecting.planned import Assumption, Planned, ScheduleError, pace_ends
from telemetry.project.chance import Doubt
from telemetry.project.course import Habits

MOST_BYTES = 100_000
# The figures of an arm that a file gives under their own names.
NAMES = tuple(name for name in Habits.__slots__ if name not in ("n_nodes", "unlucky_ratio"))
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Some = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class GivenArm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One arm by hand, in the units of `telemetry.project.course.Habits`.

    ``tokens_per_s_error_ratio`` is how far the pace may be off, as a standard error: 0.02 for 2 %.
    """

    label: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    nodes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    usd_per_hour: Some
    tokens_per_s: Some
    tokens_per_s_error_ratio: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    checkpoint_s_per_hour: Annotated[float, msgspec.Meta(ge=0, lt=3600)] = 0.0
    checkpoint_every_s: Some = 3_600.0
    compile_s: Amount = 0.0
    load_s: Amount = 0.0
    warm_up_s: Amount = 0.0
    failures_per_node_day: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    recompiles_per_day: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: one arm, or a baseline and a candidate."""

    arm: Annotated[tuple[GivenArm, ...], msgspec.Meta(min_length=1, max_length=2)]


def arms_by_hand(path: Path) -> tuple[Planned, ...]:
    """Read one arm, or a baseline and a candidate.

    Raises
    ------
    ScheduleError
        Where the file or a figure in it cannot be.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ScheduleError("figures", f"{path}: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise ScheduleError("figures", f"{path} is too long for a file of two arms")
    try:
        given = msgspec.convert(tomllib.loads(text.decode()), Given)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScheduleError("figures", f"{path} is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ScheduleError("figures", _mended(str(error))) from error
    return tuple(_planned(each, seed=i) for i, each in enumerate(given.arm))


def _mended(message: str) -> str:
    """Say it with the field first, as the file has it: ``arm[0].nodes``."""
    words, _, place = message.partition(" - at `$.")
    return f"{place.rstrip('`')}: {words}" if place else message


def _planned(given: GivenArm, *, seed: int) -> Planned:
    plain = msgspec.to_builtins(given)
    habits = Habits(
        n_nodes=given.nodes,
        **{name: float(plain[name]) for name in NAMES},
    )
    error = given.tokens_per_s_error_ratio
    return Planned(
        label=given.label,
        run=None,
        instance_type="",
        habits=habits,
        doubt=Doubt(error or None),
        assumptions=tuple(
            Assumption(name, float(plain[name]), *_ends(given, name), "given by hand")
            for name in NAMES
        ),
        seed=seed,
    )


def _ends(given: GivenArm, name: str) -> tuple[float | None, float | None]:
    if name != "tokens_per_s" or not given.tokens_per_s_error_ratio:
        return None, None
    return pace_ends(given.tokens_per_s, given.tokens_per_s_error_ratio)
