"""By which limits preflights judge, as a table for their page: each beside why it is so."""

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.templatetags.units import percent
from telemetry.preflight.checks import DEVIATIONS, DEVICE_SLOWER_BY, LOSS_RATIO
from telemetry.preflight.collective import SLOWER_BY
from telemetry.preflight.links import FIGURES, NODE_DEVIATIONS, PAIR_DEVIATIONS
from telemetry.preflight.measured import REST_COUNTERS

NAMES = {
    "p50_s": "median",
    "p99_s": "99th percentile",
    "bandwidth_bytes_per_s": "bandwidth",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """One check: what is looked at, what counts as wrong, what follows, and why."""

    what: str
    wrong: str
    verdict: str
    because: str


# How many times worse than usual a node, or a pair, must be.
OF_NODES = ", ".join(f"{NAMES[each.name]} {each.node:g} \u00d7" for each in FIGURES)
OF_PAIRS = ", ".join(f"{NAMES[each.name]} {each.pair:g} \u00d7" for each in FIGURES)
# Every check with the limit that the code holds it to.
LIMITS: Sequence[Limit] = (
    Limit(
        "accelerators, EFA devices",
        "fewer than its type has",
        "fail",
        "the layout of the run would not fit",
    ),
    Limit("uncorrected memory errors, hardware errors", "any", "fail", "they come again"),
    Limit(
        "counters at rest",
        f"any of {', '.join(REST_COUNTERS)} moves",
        "hold",
        "nothing should move while nothing runs",
    ),
    Limit(
        "one EFA device",
        f"no answer; {DEVICE_SLOWER_BY:g} \u00d7 its peers and {DEVIATIONS:g} deviations; "
        f"{percent(LOSS_RATIO, 2)} of its packets sent again",
        "fail",
        "alike devices differ by 2 to 4 %; a busy fabric answers 10 % later",
    ),
    Limit(
        "a node to all others",
        f"{OF_NODES} worse than usual, and {NODE_DEVIATIONS:g} deviations",
        "fail",
        "the tail wanders more than the median, bandwidth less",
    ),
    Limit(
        "a pair",
        f"{OF_PAIRS} worse than its two nodes explain, and {PAIR_DEVIATIONS:g} deviations",
        "hold",
        "racks apart differ by a fifth, and are no fault",
    ),
    Limit(
        "the group",
        f"the collective over those to take needs more than {SLOWER_BY:g} \u00d7 the expected",
        "hold",
        "the expected curve fits published runs within 15 %",
    ),
)
