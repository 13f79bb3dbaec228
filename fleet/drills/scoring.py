"""How well alerts told the truth: precision, recall, localisation, cause, time to detect."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fleet.drills.firings import Firing
from fleet.drills.matching import Matches, is_cause_right, is_place_right, match
from fleet.drills.truth import Truth
from fleet.models import Alert

DAY_S = 86_400.0
# Detected in time: within this, or two of the steps as the fault makes them.
IN_TIME_S = 15.0
IN_TIME_STEPS = 2.0


@dataclass(slots=True)
class Tally:
    """Counts that can be added up over scenarios; ``delays_s`` are times to detect."""

    duration_s: float = 0.0
    n_faults: int = 0
    n_countable: int = 0
    n_alerts: int = 0
    n_noticed: int = 0
    n_placed: int = 0
    n_named: int = 0
    n_in_time: int = 0
    n_repeats: int = 0
    n_false: int = 0
    n_false_pages: int = 0
    delays_s: list[float] = field(default_factory=list)

    def score(self) -> dict[str, Any]:
        """Return counts and ratios, None where a ratio has nothing to stand on."""
        return {
            "n_faults": self.n_faults,
            "n_countable": self.n_countable,
            "n_alerts": self.n_alerts,
            "n_noticed": self.n_noticed,
            "n_missed": self.n_countable - self.n_noticed,
            "n_repeats": self.n_repeats,
            "precision": ratio(self.n_alerts - self.n_false, self.n_alerts),
            "recall": ratio(self.n_noticed, self.n_countable),
            "localisation": ratio(self.n_placed, self.n_noticed),
            "cause": ratio(self.n_named, self.n_noticed),
            "in_time": ratio(self.n_in_time, self.n_noticed),
            "time_to_detect_s": {
                "p50": percentile(self.delays_s, 50),
                "p90": percentile(self.delays_s, 90),
            },
            "false_alerts": self.n_false,
            "false_pages": self.n_false_pages,
            "false_pages_per_day": ratio(self.n_false_pages, self.duration_s / DAY_S),
        }


def tally(
    truths: Sequence[Truth],
    firings: Sequence[Firing],
    *,
    duration_s: float,
    matches: Matches | None = None,
) -> Tally:
    """Count what one play brought; faults that need not be found count only if they were."""
    matches = matches or match(truths, firings)
    noticed = [(truths[i], firings[j]) for i, j in matches.noticed.items() if truths[i].counts]
    false = [firings[j] for j in matches.false]
    return Tally(
        duration_s=duration_s,
        n_faults=len(truths),
        n_countable=sum(truth.counts for truth in truths),
        n_alerts=len(firings),
        n_noticed=len(noticed),
        n_placed=sum(is_place_right(*pair) for pair in noticed),
        n_named=sum(is_cause_right(*pair) for pair in noticed),
        n_in_time=sum(is_in_time(*pair) for pair in noticed),
        n_repeats=len(matches.repeats),
        n_false=len(false),
        n_false_pages=sum(firing.severity == Alert.Severity.PAGE for firing in false),
        delays_s=[firing.fired_s - truth.start_s for truth, firing in noticed],
    )


def total(tallies: Iterable[Tally]) -> Tally:
    """Add up the counts of several plays."""
    everything = Tally()
    for each in tallies:
        for name in Tally.__dataclass_fields__:
            setattr(everything, name, getattr(everything, name) + getattr(each, name))
    return everything


def is_in_time(truth: Truth, firing: Firing) -> bool:
    """Whether a fault was noticed within 15 seconds or two steps, whichever is longer."""
    limit_s = max(IN_TIME_S, IN_TIME_STEPS * (truth.step_s or 0.0))
    return firing.fired_s - truth.start_s <= limit_s


def ratio(part: float, whole: float) -> float | None:
    """Return part over whole, None of nothing."""
    return part / whole if whole else None


def percentile(values: Sequence[float], q: float) -> float | None:
    """Return a percentile, None of no values."""
    return float(np.percentile(values, q)) if values else None
