"""The limits of a run that differ from those of the rules."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction

from fleet.models import Annotation, Run
from telemetry.detect.rules import RULES
from telemetry.errors import FieldError

PERCENT, MINUTES = 0.01, 60.0
# Limits in columns of their own; the others are in `Run.limits`.
COLUMNS = {
    "allreduce_share.limit_ratio": "allreduce_limit_ratio",
    "allreduce_share.resolve_ratio": "allreduce_resolve_ratio",
}
# Of no single rule: slow steps that cost less an hour are warnings. 0: all that page by rule do.
PAGE_FROM = "page.usd_per_hour"


@dataclass(frozen=True, slots=True)
class RunLimit:
    """A limit that a run may have of its own: ``least`` to ``most``, in a unit for people.

    ``scale`` is one such unit in that of the rule.
    """

    rule: str
    name: str
    label: str
    unit: str
    scale: float
    least: float
    most: float
    help: str = ""

    @property
    def key(self) -> str:
        return f"{self.rule}.{self.name}"

    @property
    def field(self) -> str:
        """Its name in a form."""
        return self.key.replace(".", "-")

    @property
    def usual(self) -> float:
        if self.key == PAGE_FROM:
            return settings.PAGE_FROM_USD_PER_HOUR
        return round(RULES[self.rule].limits[self.name] / self.scale, 6)

    def of(self, run: Run) -> float | None:
        """Return the run's own limit, None where it has the usual one."""
        column = COLUMNS.get(self.key)
        own = getattr(run, column) if column else (run.limits or {}).get(self.key)
        shown = None if own is None else round(own / self.scale, 6)
        return None if shown == self.usual else shown

    def written(self, value: float | None = None) -> str:
        """Write a limit, by default the usual one, with its unit."""
        return f"{self.usual if value is None else value:g}\u202f{self.unit}"

    @property
    def range(self) -> str:
        return f"{self.least:g} to {self.written(self.most)}"


# Where a rule compares no more than it has found, its limit is the least.
RUN_LIMITS = (
    RunLimit(
        *("allreduce_share", "limit_ratio", "All-reduce share above", "%", PERCENT, 1, 99),
        help="Of the step time.",
    ),
    RunLimit("allreduce_share", "resolve_ratio", "It resolves below", "%", PERCENT, 1, 99),
    RunLimit(
        *("step_slow", "least_ratio", "Steps longer by", "%", PERCENT, 4, 200),
        help="Than before.",
    ),
    RunLimit("hang", "late_s", "No step for", "s", 1.0, 10, 3600),
    RunLimit(
        "checkpoint_slow", "slower_by_ratio", "Checkpoint takes", "times usual", 1.0, 1.5, 20
    ),
    RunLimit("node_idle", "idle_s", "Node idle for", "min", MINUTES, 2, 14),
    RunLimit(
        *("cost_drift", "estimate_ratio", "Tokens above the estimate by", "%", PERCENT, 5, 500),
        help="In cost.",
    ),
    RunLimit(
        *("cost_drift", "own_ratio", "Tokens above earlier ones by", "%", PERCENT, 5, 500),
        help="In cost; or above similar runs.",
    ),
    RunLimit(
        *("page", "usd_per_hour", "Page from a loss of", "$/h", 1.0, 0, 1_000_000),
        help="Slow steps that cost less are a warning. 0: they page.",
    ),
)


def page_from(run: Run) -> float:
    """Return from how many dollars an hour on slow steps of a run page; 0: always."""
    own: float | None = (run.limits or {}).get(PAGE_FROM)
    return settings.PAGE_FROM_USD_PER_HOUR if own is None else own


def own_limits(run: Run, *, others_than: Container[str] = ()) -> list[tuple[str, str, str]]:
    """Return label, value and usual value of each limit that differs from the usual one."""
    values = [(limit, limit.of(run)) for limit in RUN_LIMITS if limit.key not in others_than]
    return [
        (limit.label, limit.written(value), limit.written())
        for limit, value in values
        if value is not None
    ]


@transaction.atomic
def set_limits(
    name: str, wanted: Mapping[str, float | None], *, by: str, now: datetime
) -> tuple[Run, int]:
    """Give a run limits of its own, by field; None: the usual one. Return how many changed.

    The run's charts and the change log show each change. Raises FieldError where the run does
    not exist, or a limit is out of its range.
    """
    run = Run.objects.select_for_update().filter(name=name).first()
    if run is None:
        raise FieldError("run", f"no run is called {name[:60]!r}")
    changes = []
    for limit in RUN_LIMITS:
        before, after = limit.of(run), wanted.get(limit.field)
        if after is not None and not limit.least <= after <= limit.most:
            raise FieldError(limit.field, f"give {limit.range}, or nothing for the usual limit")
        after = None if after == limit.usual else after
        if after != before:
            new, old = limit.written(after), limit.written(before)
            changes.append(f"{limit.label} {new} instead of {old}")
            _keep(run, limit, after)
    if run.allreduce_resolve_ratio > run.allreduce_limit_ratio:
        raise FieldError(RUN_LIMITS[1].field, "give no more than the share at which it fires")
    run.save(update_fields=["limits", *COLUMNS.values()])
    Annotation.objects.bulk_create(
        Annotation(run=run, at=now, kind=Annotation.Kind.LIMIT, text=text, by=by)
        for text in changes
    )
    return run, len(changes)


def _keep(run: Run, limit: RunLimit, value: float | None) -> None:
    kept = None if value is None else round(value * limit.scale, 9)
    if column := COLUMNS.get(limit.key):
        setattr(run, column, RULES[limit.rule].limits[limit.name] if kept is None else kept)
        return
    others = {key: each for key, each in (run.limits or {}).items() if key != limit.key}
    run.limits = (others | ({} if kept is None else {limit.key: kept})) or None
