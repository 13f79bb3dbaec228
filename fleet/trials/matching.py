"""What the arms of a trial must have in common, and where they do not."""

import re
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
    ("optimizer", "optimizer", lambda run: run.optimizer),
)
# What frameworks add to an optimizer's name, which says how it is computed and not what it is.
HOW = frozenset(("torch", "fused", "xla", "hf", "npu", "apex"))


def matches(runs: Sequence[Run], tokens_per_step: Sequence[float | None]) -> tuple[Match, ...]:
    """Compare what the arms train, field by field.

    Parameters
    ----------
    runs : of the arms, the baseline first
    tokens_per_step : what each arm's steps really trained on; None where nobody counted

    Notes
    -----
    Of an optimizer only its kind is compared: ``adamw_torch`` is AdamW. Its settings, and the
    schedule of its learning rate, nobody reports.
    """
    told = [_told(field, words, [read(run) for run in runs]) for field, words, read in FIELDS]
    counts = ["" if n is None else f"{n:,.0f}" for n in tokens_per_step]
    told.append(_told("tokens_per_step", "tokens per step", counts))
    if any(run.tokens_per_epoch for run in runs):
        epochs = [f"{run.tokens_per_epoch:,}" if run.tokens_per_epoch else "" for run in runs]
        told.append(_told("tokens_per_epoch", "tokens per epoch", epochs))
    return tuple(told)


def _told(field: str, words: str, values: Sequence[str]) -> Match:
    """Compare what the arms say of one field."""
    if field == "tokens_per_step":
        known = [float(value.replace(",", "")) for value in values if value]
        is_alike = bool(known) and max(known) - min(known) <= SAME_TOKENS_RATIO * max(known)
    else:
        kinds = {kind_of(value) if field == "optimizer" else value for value in values}
        is_alike = len(kinds) == 1
    return _match(field, words, values, is_alike=is_alike)


def between(found: Sequence[Match], one: int, other: int) -> list[Match]:
    """Return how two of the arms, by their place, stand to each other, whatever others have."""
    pairs = [(match, (match.values[one], match.values[other])) for match in found]
    return [
        _told(match.field, match.words, ["" if each == NOT_REPORTED else each for each in pair])
        for match, pair in pairs
    ]


def kind_of(optimizer: str) -> str:
    """Return an optimizer's name as all frameworks could write it: adamw for adamw_torch."""
    parts = re.split(r"[^a-z0-9]+", optimizer.casefold())
    return "".join(part for part in parts if part not in HOW)


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
