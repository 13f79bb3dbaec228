"""The intervals of a candidate as shapes: where each begins and ends on one axis, in percent."""

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.trials.claims import Claim
from fleet.trials.figures import Candidate, Comparison
from fleet.trials.words import Worded, worded

# More is better in each: what lies right of the middle speaks for the candidate.
DRAWN = ("tokens_per_usd", "tokens_per_s", "mfu_ratio")
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
MOST_TICKS = 6
MARGIN = 0.08


@dataclass(frozen=True, slots=True)
class Band:
    """What is claimed: from where, how wide, in percent of the axis."""

    left: str
    width: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class Line:
    """One measure: its point, and its interval where there is one."""

    row: Worded
    at: str
    left: str
    right: str
    band: Band | None


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines on an axis with its ticks: place and difference of each."""

    lines: tuple[Line, ...]
    ticks: tuple[tuple[str, float], ...]
    zero: str


def drawing(candidate: Candidate, claim: Claim | None) -> Drawing | None:
    """Draw a candidate's measures of which more is better; None where there is none."""
    shown = [found for name in DRAWN if (found := candidate.of(name)) is not None]
    if not shown:
        return None
    axis = _Axis(_ends(shown, claim))
    lines = tuple(_line(each, axis, claim) for each in shown)
    return Drawing(lines, tuple((axis.place(at), at) for at in axis.ticks), axis.place(0.0))


def _ends(shown: Sequence[Comparison], claim: Claim | None) -> list[float]:
    ends = [0.0]
    for each in shown:
        ends += [end for end in (each.ratio, each.low, each.high) if end is not None]
    return [*ends, claim.low, claim.high] if claim else ends


class _Axis:
    """An axis that reaches a little beyond all that it shows."""

    def __init__(self, ends: Sequence[float]) -> None:
        margin = MARGIN * (max(ends) - min(ends)) or 0.01
        self.start = min(ends) - margin
        self.length = max(ends) + margin - self.start

    @property
    def ticks(self) -> list[float]:
        """Round differences, few enough to be read."""
        every = next((t for t in TICKS if self.length / t <= MOST_TICKS), TICKS[-1])
        first = -int(-self.start // every)
        n = int((self.start + self.length) // every) - first + 1
        return [(first + i) * every for i in range(n)]

    def place(self, value: float) -> str:
        """Return where a difference stands, in percent of the axis."""
        return f"{(value - self.start) / self.length * 100:.2f}"


def _line(found: Comparison, axis: _Axis, claim: Claim | None) -> Line:
    band = None
    if claim and found.measure == "tokens_per_usd":
        width = (claim.high - claim.low) / axis.length * 100
        band = Band(axis.place(claim.low), f"{width:.2f}", claim)
    low, high = (found.ratio if end is None else end for end in (found.low, found.high))
    return Line(
        worded(found),
        axis.place(found.ratio),
        axis.place(low),
        axis.place(high),
        band,
    )
