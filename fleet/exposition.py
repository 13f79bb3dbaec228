"""What Prometheus may know of runs and alerts: what people gave names to."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from django.db.models import Q

from fleet.models import Alert, Node, Run
from fleet.summaries import RunNow, runs_now
from telemetry.detect.rules import RULES
from telemetry.families import Family, Spec
from telemetry.store.hot import HotStore

# A run that is over is still told of for a day, so that its last totals are scraped.
TOLD_AFTER_END = timedelta(days=1)


def _run_spec(name: str, about: str) -> Spec:
    is_total = name.endswith("_total")
    return Spec(f"trnwatch_run_{name}", "counter" if is_total else "gauge", about, ("run",))


# Of a run whose steps have stopped coming none of these is said.
PACE: Mapping[Spec, Callable[[RunNow], float | None]] = {
    _run_spec("step_seconds", "Duration of a step, mean of the last minute."): lambda r: r.step_s,
    _run_spec(
        "allreduce_share_ratio", "Exposed gradient all-reduce over step time, last minute."
    ): lambda r: r.share_ratio,
    _run_spec(
        "allreduce_wait_ratio", "Part of the step spent waiting for peers, last minute."
    ): lambda r: r.wait_ratio,
    _run_spec(
        "allreduce_transfer_ratio", "Part of the step spent moving gradients, last minute."
    ): lambda r: r.transfer_ratio,
    _run_spec("tokens_per_second", "Tokens trained per second."): lambda r: r.tokens_per_s,
    _run_spec("mfu_ratio", "Model FLOPs over the peak of all nodes."): lambda r: r.mfu_ratio,
    _run_spec(
        "cost_per_million_tokens_usd", "Dollars per million tokens at this pace."
    ): lambda r: r.usd_per_mtok,
}
LIMIT = _run_spec("allreduce_limit_ratio", "Share above which the run's alert fires.")
TOKENS = _run_spec("tokens_total", "Tokens trained.")
STEPS = _run_spec("steps_total", "Steps made.")
COST = _run_spec("cost_usd_total", "Dollars spent: nodes by the hour, whatever they do.")
INFO = Spec(
    "trnwatch_run_info",
    "gauge",
    "What a run is; always 1.",
    ("run", "team", "model", "instance_type", "phase"),
)
FIRING = Spec(
    "trnwatch_alerts_firing",
    "gauge",
    "Alerts that are not resolved, acknowledged or not.",
    ("rule", "severity"),
)
UNACKNOWLEDGED = Spec(
    "trnwatch_alerts_unacknowledged",
    "gauge",
    "Alerts that nobody has taken.",
    ("rule", "severity"),
)


def run_families(hot: HotStore, *, now: datetime) -> list[Family]:
    """Return everything about the runs that go on, or ended within a day."""
    recent = Q(finished_at=None) | Q(finished_at__gt=now - TOLD_AFTER_END)
    runs = runs_now(hot, Run.objects.filter(recent, trace=None), now_s=now.timestamp())
    families = []
    for spec, value in PACE.items():
        family = Family(spec)
        for each in runs:
            family.add(None if each.is_stale else value(each), each.run.name)
        families.append(family)
    return [*families, *_run_totals([each.run for each in runs], hot, now=now)]


def _run_totals(runs: Iterable[Run], hot: HotStore, *, now: datetime) -> list[Family]:
    """Return what runs have amounted to so far, and what they are."""
    limit, tokens, steps, cost, info = map(Family, (LIMIT, TOKENS, STEPS, COST, INFO))
    counted = hot.totals()
    for run in runs:
        limit.add(run.allreduce_limit_ratio, run.name)
        tokens.add(max(run.n_tokens, counted.tokens.get(run.name, 0.0)), run.name)
        steps.add(max(run.last_step, counted.steps.get(run.name, 0)), run.name)
        cost.add(run.usd_by(now), run.name)
        info.add(1.0, run.name, run.team, run.model, run.instance_type, run.phase)
    return [limit, tokens, steps, cost, info]


def alert_families() -> list[Family]:
    """Return how many alerts there are of each rule; a rule that is kept counts zero."""
    firing, unacknowledged = Family(FIRING), Family(UNACKNOWLEDGED)
    known = {(rule.name, rule.severity): 0 for rule in RULES.values()}
    everything: Counter[tuple[str, str]] = Counter(known)
    untaken = everything.copy()
    for alert in Alert.objects.open().only("rule", "severity", "acknowledged_at"):
        kind = (alert.rule, Alert.Severity(alert.severity).label)
        everything[kind] += 1
        untaken[kind] += alert.acknowledged_at is None
    for family, counts in ((firing, everything), (unacknowledged, untaken)):
        for kind, n in sorted(counts.items()):
            family.add(n, *kind)
    return [firing, unacknowledged]


def expected_nodes() -> list[str]:
    """Name the nodes that ought to report: all but those of runs that are over."""
    return list(Node.objects.filter(run__finished_at=None).values_list("name", flat=True))
