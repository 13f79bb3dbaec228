"""The figures of an alert, read leniently: each rule stores those that it has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fleet.alerts.causes import LINKS, cause_name
from fleet.formatting import counted, listed
from fleet.models import Alert
from telemetry.detect import names_of
from telemetry.detect.causes import UNKNOWN

# The kind of evidence that does not say in which phase a step takes longer.
WHOLE_STEP = "step"
# Rules of which the other workers may wait for one.
WAITED = names_of(lambda rule: rule.waits)


def finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def numbers_of(given: object) -> Mapping[str, float]:
    pairs = given.items() if isinstance(given, Mapping) else ()
    return {str(k): n for k, v in pairs if (n := finite(v)) is not None}


@dataclass(frozen=True, slots=True)
class Culprit:
    """The figure by which a culprit differs from its peers; None where unknown."""

    metric: str | None = None
    value: float | None = None
    peers_median: float | None = None
    n_peers: int | None = None
    unit: str | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The figures of one alert, read leniently: each rule stores those that it has."""

    figures: Mapping[str, Any]

    @property
    def clean(self) -> Mapping[str, Any]:
        """All figures except NaN and infinity."""
        return {
            key: value
            for key, value in self.figures.items()
            if not isinstance(value, float) or isfinite(value)
        }

    def number(self, name: str) -> float | None:
        """Return a figure; None where it is missing or not a finite number."""
        return finite(self.figures.get(name))

    @property
    def numbers(self) -> Mapping[str, float]:
        """All finite numbers."""
        return numbers_of(self.figures)

    @property
    def is_waiting(self) -> bool:
        """Whether workers wait for a peer, rather than for bytes to move.

        Of whole steps, the ratios of the few that were timed say it.
        """
        kind = self.figures.get("kind", WHOLE_STEP)
        return kind == "waiting" or (kind == WHOLE_STEP and self._waits_beyond_transfer > 0)

    @property
    def is_untimed(self) -> bool:
        """Whether steps take longer, and nothing says in which phase."""
        return self.figures.get("kind") == WHOLE_STEP and self.number("wait_ratio") is None

    @property
    def is_transferring(self) -> bool:
        """Whether more time is measured in transfers than in waits."""
        return self._waits_beyond_transfer < 0

    @property
    def _waits_beyond_transfer(self) -> float:
        return (self.number("wait_ratio") or 0.0) - (self.number("transfer_ratio") or 0.0)

    @property
    def is_layout(self) -> bool:
        """Whether the layout of the run explains the communication: nothing is broken."""
        return str(self.figures.get("kind", "")).endswith("layout")

    @property
    def culprit(self) -> Culprit:
        given = self.figures.get("culprit")
        if not isinstance(given, Mapping):
            return Culprit()
        n_peers = finite(given.get("n_peers"))
        return Culprit(
            metric=given.get("metric"),
            value=finite(given.get("value")),
            peers_median=finite(given.get("peers_median")),
            n_peers=None if n_peers is None else int(n_peers),
            unit=given.get("unit"),
            limit=finite(given.get("limit")),
        )

    @property
    def wait_by_worker(self) -> Mapping[str, float]:
        """Seconds that each worker waits per step."""
        return numbers_of(self.figures.get("wait_by_worker"))

    @property
    def by_node(self) -> Mapping[str, float]:
        """How busy the host of each node is, 0 to 1, in alerts of hangs."""
        return numbers_of(self.figures.get("host_by_node"))

    @property
    def posterior(self) -> Mapping[str, float]:
        """How probable each cause is, the most probable first; empty where it was not weighed."""
        return dict(
            sorted(numbers_of(self.figures.get("posterior")).items(), key=lambda item: -item[1])
        )

    @property
    def likeliest(self) -> tuple[str, float] | None:
        """The most probable cause by name, and how probable it is; None if that is unknown."""
        cause, share = next(iter(self.posterior.items()), (UNKNOWN, 0.0))
        return None if cause == UNKNOWN else (cause_name(cause), share)

    @property
    def limits(self) -> Mapping[str, Any]:
        """What could be found in the run, by its noise."""
        given = self.figures.get("limits")
        return given if isinstance(given, Mapping) else {}

    @property
    def shared_place(self) -> str:
        """Where a fault of several nodes or runs is; empty for a fault of one."""
        nodes, runs = self.names("nodes"), self.names("runs")
        places = {"rack": "rack", "ultraserver": "UltraServer"}
        known = (
            f"{word} {name}" for key, word in places.items() if (name := self.figures.get(key))
        )
        is_shared = runs and max(len(nodes), len(runs)) > 1
        return shared_place(nodes, runs, next(known, "")) if is_shared else ""

    def names(self, key: str) -> Sequence[str]:
        given = self.figures.get(key)
        return [str(name) for name in given] if isinstance(given, list | tuple) else []


def has_late_worker(alert: Alert) -> bool:
    """Whether the other workers wait for the alert's node; False where a link is slow."""
    is_waited_for = Evidence(alert.evidence).is_waiting and alert.rule in WAITED
    return is_waited_for and alert.node is not None and alert.cause not in LINKS


def shared_place(nodes: Sequence[str], runs: Sequence[str], place: str) -> str:
    """Write where a fault of several nodes or runs is: ``3 nodes in rack r2, runs a and b``."""
    where = [counted(len(nodes), "node") + (f" in {place}" if place else "")] if nodes else []
    if runs:
        names = [*runs[:-2], " and ".join(runs[-2:])] if len(runs) < 6 else [listed(runs, 4)]
        where.append(f"{'run' if len(runs) == 1 else 'runs'} {', '.join(names)}")
    return ", ".join(where)
