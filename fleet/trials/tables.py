"""A trial's figures as rows: for a spreadsheet, and for the page's table of what arms took."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fleet.trials.figures import ArmFigures, Candidate, Comparison, TrialFigures
from fleet.trials.judgement import Judgement, judged
from fleet.trials.measures import TOKENS_PER_MTOK, VendorClaim
from fleet.trials.verdict import ComparisonRow, worded

# More is better in each: what lies right of the middle speaks for the candidate.
DRAWN = ("tokens_per_usd", "tokens_per_s", "mfu_ratio")
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
MOST_TICKS = 6
MARGIN = 0.08


@dataclass(frozen=True, slots=True)
class ClaimBand:
    """What is claimed: from where, how wide, in percent of the axis."""

    left: str
    width: str
    claim: VendorClaim


@dataclass(frozen=True, slots=True)
class IntervalLine:
    """One measure: its point, and its interval where there is one."""

    row: ComparisonRow
    at: str
    left: str
    right: str
    band: ClaimBand | None


@dataclass(frozen=True, slots=True)
class IntervalChart:
    """Lines on an axis with its ticks: place and difference of each."""

    lines: tuple[IntervalLine, ...]
    ticks: tuple[tuple[str, float], ...]
    zero: str


def drawing(
    candidate: Candidate, claim: VendorClaim | None, judgement: Judgement | None = None
) -> IntervalChart | None:
    """Draw a candidate's measures of which more is better; None where there is none.

    A claim of tokens per dollar is drawn only where the prices are of one kind, which they are
    taken to be without a judgement.
    """
    shown = list(_shown(candidate, judgement))
    if not shown:
        return None
    claim = claim if any(has_band for _, has_band in shown) else None
    axis = _Axis(_ends([row.comparison for row, _ in shown], claim))
    lines = tuple(_line(row, axis, claim if has_band else None) for row, has_band in shown)
    return IntervalChart(lines, tuple((axis.place(at), at) for at in axis.ticks), axis.place(0.0))


def _shown(
    candidate: Candidate, judgement: Judgement | None
) -> Iterator[tuple[ComparisonRow, bool]]:
    """Yield what is drawn, and whether a claim of tokens per dollar speaks of it.

    Where the prices paid are of one kind and list prices do not contradict, they are all that is.
    """
    is_unlike = judgement is not None and judgement.are_kinds_unlike
    if judgement and (judgement.paid is None or is_unlike or judgement.opposed):
        for each in judgement.at_kinds:
            row = worded(_inverse(each.comparison))
            yield replace(row, words=f"{row.words}, {each.kind} prices"), True
    for name in DRAWN:
        if (found := candidate.of(name)) is None:
            continue
        row = worded(found)
        is_priced = name == "tokens_per_usd"
        if is_priced and is_unlike:
            row = replace(row, words=f"{row.words}, as paid")
        yield row, is_priced and not is_unlike


def _inverse(found: Comparison) -> Comparison:
    """Return tokens per dollar, as far as they are drawn, of dollars per token."""
    return Comparison(
        measure="tokens_per_usd",
        baseline=TOKENS_PER_MTOK / found.baseline,
        candidate=TOKENS_PER_MTOK / found.candidate,
        ratio=1 / (1 + found.ratio) - 1,
        low=None if found.high is None else 1 / (1 + found.high) - 1,
        high=None if found.low is None else 1 / (1 + found.low) - 1,
        word=found.word,
        n_more_steps=found.n_more_steps,
    )


def _ends(shown: Sequence[Comparison], claim: VendorClaim | None) -> list[float]:
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


def _line(row: ComparisonRow, axis: _Axis, claim: VendorClaim | None) -> IntervalLine:
    band, found = None, row.comparison
    if claim:
        width = (claim.high - claim.low) / axis.length * 100
        band = ClaimBand(axis.place(claim.low), f"{width:.2f}", claim)
    low, high = (found.ratio if end is None else end for end in (found.low, found.high))
    return IntervalLine(row, axis.place(found.ratio), axis.place(low), axis.place(high), band)


COMPARED = (
    *("candidate", "run", "measure", "baseline", "value", "ratio"),
    *("low_95", "high_95", "word", "n_more_steps"),
)
TOOK = (
    *("arm", "run", "instance_type", "n_nodes", "n_steps", "n_settled", "n_warm_up"),
    *("tokens_per_step", "compile_s", "ready_s", "first_step_s", "warm_up_s"),
    *("first_epoch_step_s", "first_epoch_ratio", "time_to_train_s", "n_tokens", "n_lost"),
    *("settled_s", "settled_tokens", "price_basis"),
    *("usd_per_hour", "usd_ready", "usd_warm_up", "usd_settled", "usd_between", "usd"),
)
# What stands where no verdict follows: before why.
NO_WORD = "none: "
# A spreadsheet takes what begins with one of these for a formula.
FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def written_csv(figures: TrialFigures) -> str:
    """Write two tables, an empty line between: the comparisons, and what each arm took."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COMPARED)
    writer.writerows([_plain(cell) for cell in row] for row in _comparisons(figures))
    writer.writerow([])
    writer.writerow(TOOK)
    writer.writerows([_plain(cell) for cell in _took(arm)] for arm in figures.arms)
    return text.getvalue()


def _comparisons(figures: TrialFigures) -> Iterator[list[object]]:
    for candidate in figures.candidates:
        judgement = judged(figures, candidate)
        for each in candidate.comparisons:
            why = judgement.no_word(each.measure)
            yield [
                *(candidate.label, candidate.run, each.measure, each.baseline, each.candidate),
                *(each.ratio, each.low, each.high),
                *((f"{NO_WORD}{why}", None) if why else (each.word, each.n_more_steps)),
            ]


def _took(arm: ArmFigures) -> list[object]:
    return [arm.label, *(getattr(arm, name) for name in TOOK[1:])]


def _plain(cell: object) -> object:
    """Return a cell that no spreadsheet computes; what is unknown is empty."""
    if not isinstance(cell, str):
        return "" if cell is None else cell
    # Spreadsheets that guess the encoding guess this sign wrong.
    text = cell.replace("\u00d7", "x")
    return f"'{text}" if text.startswith(FORMULAS) else text
