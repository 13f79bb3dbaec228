"""Progress bars of tqdm: how far, for how long, at what rate, and the figures behind them."""

import math
import re
from dataclasses import dataclass

from telemetry.ingest.logs.figures import NUMBER, PAIR, clock_seconds, positive, step_number

FLAGS = re.ASCII | re.IGNORECASE
RATE = rf"(?P<rate>{NUMBER}|\?)\s?(?P<unit>s/it|it/s)(?P<rest>[^\]]*)"
BAR = re.compile(
    rf"\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,4}}(?P<n>\d{{1,12}})/(?P<total>\d{{1,12}})\s{{0,4}}"
    rf"\[(?P<clock>[\d:]{{1,20}})<[^,\]]{{0,40}},\s{{0,4}}{RATE}",
    FLAGS,
)
OPEN_BAR = re.compile(
    rf"(?P<n>\d{{1,12}})it\s{{0,4}}\[(?P<clock>[\d:]{{1,20}}),\s{{0,4}}{RATE}", FLAGS
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One state of a progress bar; ``total`` is None where the bar does not know its end."""

    label: str
    n: int
    total: int | None
    elapsed_s: float
    rate_s: float
    figures: dict[str, str]


def bar_of(text: str) -> Bar | None:
    """Return the last progress bar on a line, None where there is none."""
    match = next(iter(reversed([*BAR.finditer(text)])), None) or OPEN_BAR.search(text)
    if match is None:
        return None
    n = step_number(match["n"])
    if n is None:
        return None
    total = match.groupdict().get("total")
    return Bar(
        label=text[: match.start()].strip(" \t:").lower()[:80],
        n=n,
        total=int(total) if total else None,
        elapsed_s=clock_seconds(match["clock"]),
        rate_s=_seconds_each(match["rate"], match["unit"]),
        figures={name.lower(): value for name, value in PAIR.findall(match["rest"])},
    )


def _seconds_each(rate: str, unit: str) -> float:
    told = positive(None if rate == "?" else rate)
    if math.isnan(told):
        return math.nan
    return told if unit.lower() == "s/it" else 1.0 / told
