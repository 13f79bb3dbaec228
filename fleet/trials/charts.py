"""Charts of a trial, drawn as SVG: cost ratio by price, and loss by tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.formatting import usd
from fleet.trials.figures import ArmFigures
from fleet.trials.verdict import (
    ANY_REGION,
    BreakEvenPrice,
    Verdict,
    common_region,
    kind_of,
    list_prices,
)

LETTERS = "abcdefghijklmnop"
N_POINTS, MARGIN_RATIO, MOST_TICKS = 33, 0.12, 6
# Two prices that differ by less are one mark.
SAME_PRICE_RATIO = 0.002
# Share of the height above and below the curve.
HEADROOM_RATIO = 0.08


@dataclass(frozen=True, slots=True)
class PriceMark:
    """A known price of the baseline's node-hour, and the cost ratio there, less one.

    ``x`` and ``y`` are percent of the chart, y downwards.
    """

    letter: str
    label: str
    price: str
    ratio: float
    low: float | None
    high: float | None
    x: str
    y: str
    is_left: bool


@dataclass(frozen=True, slots=True)
class PriceChart:
    """The curve, its 95 % band (empty without an interval), marks, and the break-even.

    ``curve`` and ``band`` are points of a square of 100 by 100. Ticks have their position in
    percent and their value; ``break_even_x`` has left end, width and middle.
    """

    instance_type: str
    break_even: BreakEvenPrice
    curve: str
    band: str
    marks: tuple[PriceMark, ...]
    x_ticks: tuple[tuple[str, float], ...]
    y_ticks: tuple[tuple[str, float], ...]
    zero: str
    break_even_x: tuple[str, str, str]

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval of the break-even price; None without one."""
        prices = self.break_even
        return None if prices.low is None or prices.high is None else (prices.low, prices.high)


def price_chart(baseline: ArmFigures, arm: ArmFigures, verdict: Verdict) -> PriceChart | None:
    """Draw the cost per token over the baseline's, by the price of the baseline's node-hour.

    At a price x the ratio is ``break-even price / x``: the candidate's price and both paces stay.
    None without a break-even price, or where the arms train different workloads.
    """
    even = verdict.break_even
    if even is None or verdict.differing:
        return None
    low, high = even.low or even.usd, even.high or even.usd
    prices_by_kind = _prices(baseline, arm)
    prices = [end for _, *ends in prices_by_kind for end in ends] + [low, high]
    start, end = min(prices) * (1 - MARGIN_RATIO), max(prices) * (1 + MARGIN_RATIO)
    top, bottom = high / start - 1, low / end - 1
    top, bottom = (
        each + sign * HEADROOM_RATIO * (top - bottom) for each, sign in ((top, 1), (bottom, -1))
    )

    def x_of(price: float) -> float:
        return (price - start) / (end - start) * 100

    def y_of(ratio: float) -> float:
        return (top - ratio) / (top - bottom) * 100

    def points(price: float) -> list[str]:
        xs = [start + (end - start) * i / (N_POINTS - 1) for i in range(N_POINTS)]
        return [f"{x_of(x):.2f},{y_of(price / x - 1):.2f}" for x in xs]

    marks = []
    for letter, (label, least, most) in zip(LETTERS, prices_by_kind, strict=False):
        price = (least + most) / 2
        ratio = even.usd / price - 1
        marks.append(
            PriceMark(
                letter=letter,
                label=label,
                price=usd(price) if least == most else f"{usd(least)} to {usd(most)}",
                ratio=ratio,
                low=None if even.low is None else even.low / most - 1,
                high=None if even.high is None else even.high / least - 1,
                x=f"{x_of(price):.2f}",
                y=f"{y_of(ratio):.2f}",
                is_left=x_of(price) > 85,
            )
        )
    return PriceChart(
        instance_type=baseline.instance_type,
        break_even=even,
        curve=" ".join(points(even.usd)),
        band=" ".join(points(high) + points(low)[::-1]) if even.low is not None else "",
        marks=tuple(marks),
        x_ticks=tuple((f"{x_of(at):.2f}", at) for at in _ticks(start, end)),
        y_ticks=tuple((f"{y_of(at):.2f}", at) for at in _ticks(bottom, top)),
        zero=f"{y_of(0.0):.2f}",
        break_even_x=(
            *(f"{x_of(low):.2f}", f"{x_of(high) - x_of(low):.2f}"),
            f"{x_of(even.usd):.2f}",
        ),
    )


def _prices(baseline: ArmFigures, arm: ArmFigures) -> list[tuple[str, float, float]]:
    """List label, lower and upper end of the baseline's prices: those listed, and the one paid."""
    region = common_region(baseline.instance_type, arm.instance_type)
    prices = [
        (
            f"{kind}, list price, {price.date}"
            + ("" if price.region == ANY_REGION else f", {price.region}"),
            *(price.low_usd, price.high_usd),
        )
        for kind, price in list_prices(baseline.instance_type, region).items()
    ]
    if baseline.usd_per_hour:
        paid = baseline.usd_per_hour / baseline.n_nodes
        same = next(
            (
                place
                for place, (_, *ends) in enumerate(prices)
                if all(math.isclose(paid, end, rel_tol=SAME_PRICE_RATIO) for end in ends)
            ),
            None,
        )
        if same is None:
            kind = kind_of(baseline.price_basis)
            prices.append((f"paid{f', {kind}' if kind else ''}", paid, paid))
        else:
            prices[same] = (f"{prices[same][0]}; paid", *prices[same][1:])
    return sorted(prices, key=lambda each: each[1:])


@dataclass(frozen=True, slots=True)
class LossLine:
    """The loss of one arm: points of a square of 100 by 100, and its last value."""

    label: str
    points: str
    last: float
    is_baseline: bool


@dataclass(frozen=True, slots=True)
class LossChart:
    """Mean training loss by tokens; ticks have their position in percent and their value.

    Losses of ticks are written with as many decimals as all need.
    """

    lines: tuple[LossLine, ...]
    x_ticks: tuple[tuple[str, float], ...]
    y_ticks: tuple[tuple[str, str], ...]


def loss_chart(baseline: ArmFigures, arm: ArmFigures) -> LossChart | None:
    """Draw the losses of two arms; None unless both report some."""
    arms = (baseline, arm)
    if not all(len(each.losses) > 1 for each in arms):
        return None
    # The first losses would flatten all others.
    values = [loss for each in arms for _, loss in each.losses[1:]]
    end = max(each.losses[-1][0] for each in arms)
    room = HEADROOM_RATIO * (max(values) - min(values)) or 0.1
    bottom, top = min(values) - room, max(values) + room

    def x_of(tokens: float) -> float:
        return tokens / end * 100

    def y_of(loss: float) -> float:
        return (top - min(loss, top)) / (top - bottom) * 100

    ticks = _ticks(bottom, top)
    decimals = next((n for n in range(4) if all(round(at, n) == round(at, 6) for at in ticks)), 4)
    return LossChart(
        lines=tuple(
            LossLine(
                each.label,
                " ".join(f"{x_of(tokens):.2f},{y_of(loss):.2f}" for tokens, loss in each.losses),
                each.losses[-1][1],
                each.is_baseline,
            )
            for each in arms
        ),
        x_ticks=tuple((f"{x_of(at):.2f}", at) for at in _ticks(0.0, end)),
        y_ticks=tuple((f"{y_of(at):.2f}", f"{at:.{decimals}f}") for at in ticks),
    )


def _ticks(start: float, end: float) -> Sequence[float]:
    """Round values between two ends, at most a handful."""
    rough = (end - start) / MOST_TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    every = next(each * unit for each in (1, 2, 5, 10) if each * unit >= rough)
    first, last = math.ceil(start / every), math.floor(end / every)
    return [each * every for each in range(first, last + 1)]
