"""What the arms of a trial must have in common, and where they do not."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from fleet.models import Run

# Arms whose steps differ by less train on as many tokens.
SAME_TOKENS_RATIO = 0.01
NOT_REPORTED = "not reported"


class State(StrEnum):
    """How the arms' values stand to each other."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "not reported"


class Match(msgspec.Struct, frozen=True):
    """One field that must be the same, and what each arm has, in the order of the arms."""

    field: str
    words: str
    values: tuple[str, ...]
    state: State


FIELDS: tuple[tuple[str, str, Callable[[Run], str]], ...] = (
    ("model", "model", lambda run: run.model),
    ("global_batch", "global batch", lambda run: f"{run.global_batch or ''}"),
    ("seq_len", "sequence length", lambda run: f"{run.seq_len or ''}"),
    ("precision", "precision", lambda run: run.precision),
)


def matches(runs: Sequence[Run], tokens_per_step: Sequence[float | None]) -> tuple[Match, ...]:
    """Compare what the arms train, field by field.

    Parameters
    ----------
    runs : of the arms, the baseline first
    tokens_per_step : what each arm's steps really trained on; None where nobody counted

    Notes
    -----
    Runs do not say which optimizer they use: that field is never called the same.
    """
    told = [
        _match(field, words, [read(run) for run in runs], is_alike=len({*map(read, runs)}) == 1)
        for field, words, read in FIELDS
    ]
    counts = ["" if n is None else f"{n:,.0f}" for n in tokens_per_step]
    known = [n for n in tokens_per_step if n is not None]
    is_alike = bool(known) and max(known) - min(known) <= SAME_TOKENS_RATIO * max(known)
    told.append(_match("tokens_per_step", "tokens per step", counts, is_alike=is_alike))
    told.append(_match("optimizer", "optimizer", ["" for _ in runs], is_alike=False))
    return tuple(told)


def _match(field: str, words: str, values: Sequence[str], *, is_alike: bool) -> Match:
    state = State.SAME if is_alike else State.DIFFERS
    if not all(values):
        known = {value for value in values if value}
        state = State.DIFFERS if len(known) > 1 and not is_alike else State.UNKNOWN
    return Match(field, words, tuple(value or NOT_REPORTED for value in values), state)


def mismatches(found: Sequence[Match]) -> list[Match]:
    """Return the fields in which the arms are known to differ."""
    return [match for match in found if match.state == State.DIFFERS]


def unknowns(found: Sequence[Match]) -> list[Match]:
    """Return the fields that not every arm reports."""
    return [match for match in found if match.state == State.UNKNOWN]
