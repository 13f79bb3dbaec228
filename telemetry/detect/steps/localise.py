"""From a broken share to its cause: who waits least, and what on which machine stands out."""

from dataclasses import dataclass

from telemetry.detect.finding import UNKNOWN
from telemetry.detect.look import Look, strongest
from telemetry.detect.steps.case import Case, Kind
from telemetry.detect.steps.links import link_looks
from telemetry.detect.steps.stragglers import Lateness, lateness
from telemetry.detect.steps.workers import worker_looks

LAYOUT = "communication-bound layout"
# A second kind of rise is worth looking at where it is at least this share of the first.
WORTH_A_LOOK = 0.3
# A rise of the share by less than this part of its limit is the run's usual ups and downs.
LITTLE = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is believed: the look that convinces, None where none does, and all that do not."""

    look: Look | None
    kind: str
    lateness: Lateness
    ruled_out: tuple[Look, ...] = ()

    @property
    def cause(self) -> str:
        """Name of the fault, or that it is unknown."""
        return self.look.cause if self.look else UNKNOWN

    @property
    def is_layout(self) -> bool:
        """Whether nothing is broken: the run is laid out to communicate that much."""
        return self.kind == LAYOUT


def localise(case: Case) -> Verdict:
    """Name the cause of a share above its limit, and the culprit only where figures speak.

    The larger of the two rises, waiting or transferring, is explained first; the other one
    only where the first finds nothing and the other is not negligible.
    """
    late = lateness(case.after)
    looks: list[Look] = []
    for kind in _kinds(case):
        new = worker_looks(case, late) if kind == "waiting" else link_looks(case)
        looks += new
        if best := strongest(new):
            return Verdict(best, kind, late, _others(looks, best))
    shown = LAYOUT if _is_layout(case) else case.kind
    return Verdict(None, shown, late, _others(looks, None))


def _kinds(case: Case) -> list[Kind]:
    """Return which rises to explain, the larger one first."""
    rise_s = case.rise_s
    kinds: list[Kind] = sorted(rise_s, key=lambda kind: -rise_s[kind])
    least_s = WORTH_A_LOOK * max(rise_s.values())
    return [kind for kind in kinds if rise_s[kind] >= least_s]


def _is_layout(case: Case) -> bool:
    """Tell whether the bytes always took about that long, or do since somebody changed the run."""
    if case.takes_no_longer:
        return True
    if case.kind == "waiting":
        return False
    always = case.share_rise_ratio < LITTLE * case.vitals.limit_ratio
    return case.before is None or always or bool(case.changed)


def _others(looks: list[Look], best: Look | None) -> tuple[Look, ...]:
    """Keep what was looked at and does not stand out."""
    return tuple(look for look in looks if look is not best and not look.stands_out)
