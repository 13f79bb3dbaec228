"""What launchers and collectors put before a line: when it was written, by whom."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH = "|".join(MONTHS)
CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<frac>\d{1,9}))?"
ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
TIMES = (
    re.compile(
        rf"\[?(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)[T _]{CLOCK}{ZONE}"
        r"(?P<colon>:?)\]?\s*",
        re.ASCII,
    ),
    re.compile(
        rf"(?:LOG\s+)?\[?(?:[A-Z][a-z]{{2}}\s+)(?P<name>{MONTH})\s+(?P<day>\d{{1,2}})\s+"
        rf"{CLOCK}\s+(?P<year>\d{{4}})\]?\s*",
        re.ASCII,
    ),
    re.compile(rf"(?P<name>{MONTH})\s+(?P<day>\d{{1,2}})\s+{CLOCK}\s+", re.ASCII),
)
TAGS = (
    re.compile(r"\[(?P<who>pod/[^\]\s]{1,200})\]\s*", re.ASCII),
    re.compile(r"\[(?:rank|default|local_rank)?[ :=]?(?P<rank>\d{1,6})\]:?\s*", re.ASCII),
    re.compile(r"\[\d{1,6},(?P<rank>\d{1,6})\]<std(?:out|err)>:\s?", re.ASCII),
    re.compile(r"\s{0,8}(?P<rank>\d{1,6}):\s", re.ASCII),
    re.compile(r"[Rr]ank[ _:=]?(?P<rank>\d{1,6})[\]:,]?\s+", re.ASCII),
    re.compile(r"std(?:out|err) [FP] ", re.ASCII),
)
MOST_PREFIXES = 6
FIRST_YEAR, LAST_YEAR = 2000, 2199


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stood before a line: Unix seconds or NaN, who wrote it, and where the rest begins."""

    at_s: float = math.nan
    source: str = ""
    rank: int | None = None
    end: int = 0


def prefix_of(text: str, *, year: int, utc_offset_s: float = 0.0) -> Prefix:
    """Read the prefixes of a line; ``year`` and ``utc_offset_s`` are for times that lack them."""
    at_s, has_zone, who, rank = math.nan, False, "", None
    end = len(text) - len(text.lstrip())
    for _ in range(MOST_PREFIXES):
        if time := next((m for each in TIMES if (m := each.match(text, end))), None):
            second = _unix_s(time, year=year, utc_offset_s=utc_offset_s)
            is_better = math.isnan(at_s) or (not has_zone and bool(_group(time, "zone")))
            if is_better and not math.isnan(second):
                at_s, has_zone = second, bool(_group(time, "zone"))
            end = time.end()
        elif tag := next((m for each in TAGS if (m := each.match(text, end))), None):
            who = _group(tag, "who") or who
            rank = int(found) if (found := _group(tag, "rank")) else rank
            end = tag.end()
        else:
            break
    return Prefix(at_s, f"{who}#{'' if rank is None else rank}", rank, end)


def _group(match: re.Match[str], name: str) -> str:
    return match.groupdict().get(name) or ""


def _unix_s(time: re.Match[str], *, year: int, utc_offset_s: float) -> float:
    """Return a moment in Unix seconds; one that the calendar does not know is NaN."""
    found = time.groupdict()
    month = MONTHS.index(found["name"]) + 1 if "name" in found else int(found["month"])
    try:
        moment = datetime(
            int(found.get("year") or year),
            month,
            int(found["day"]),
            int(found["h"]),
            int(found["m"]),
            int(found["s"]),
            tzinfo=_zone(found.get("zone") or "", utc_offset_s),
        )
    except ValueError:
        return math.nan
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return math.nan
    return moment.timestamp() + _fraction_s(found)


def _zone(told: str, utc_offset_s: float) -> timezone:
    if not told:
        return timezone(timedelta(seconds=utc_offset_s))
    if told == "Z":
        return UTC
    sign = -1 if told[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(told[1:3]), minutes=int(told[-2:])))


def _fraction_s(found: dict[str, str | None]) -> float:
    """Return the part of a second; Neuron's compiler writes milliseconds as six digits."""
    digits = found.get("frac") or ""
    if not digits:
        return 0.0
    if found.get("colon") and len(digits) == 6 and digits.startswith("000"):
        return int(digits) / 1e3
    return int(digits) / 10.0 ** len(digits)
