"""What Prometheus may know of runs and alerts: what people gave names to."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q, QuerySet

from fleet.models import Alert, Node, Run
from fleet.prometheus.costs import cost_families
from fleet.summaries import RunNow, runs_now
from telemetry.detect.rules import RULES
from telemetry.families import EXEMPLAR_CHARACTERS, Exemplar, Family, Spec
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
        "allreduce_share_ratio", "Exposed gradient all-reduce over step time, newest steps."
    ): lambda r: r.share_ratio,
    _run_spec(
        "allreduce_wait_ratio", "Part of the step spent waiting for peers, newest steps."
    ): lambda r: r.wait_ratio,
    _run_spec(
        "allreduce_transfer_ratio", "Part of the step spent moving gradients, newest steps."
    ): lambda r: r.transfer_ratio,
    _run_spec("tokens_per_second", "Tokens trained per second."): lambda r: r.tokens_per_s,
    _run_spec("mfu_ratio", "Model FLOPs over the peak of all nodes."): lambda r: r.mfu_ratio,
    _run_spec(
        "cost_per_million_tokens_usd", "Dollars per million tokens at this pace."
    ): lambda r: r.usd_per_mtok,
}
LIMIT = _run_spec("allreduce_limit_ratio", "Share above which the run's alert fires.")
RESOLVE = _run_spec("allreduce_resolve_ratio", "Share below which the run's alert resolves.")
LAST_STEP = _run_spec("last_step_timestamp_seconds", "When the latest step ended, Unix time.")
TOKENS = _run_spec("tokens_total", "Tokens trained.")
STEPS = _run_spec("steps_total", "Steps made.")
COST = _run_spec("cost_usd_total", "Dollars spent: nodes by the hour, whatever they do.")
INFO = Spec(
    "trnwatch_run_info",
    "gauge",
    "What a run is; always 1.",
    ("run", "team", "model", "instance_type", "phase"),
)
NODE_INFO = Spec(
    "trnwatch_node_info",
    "gauge",
    "What a node is, and what it trains; always 1.",
    ("node", "run", "instance_type", "source"),
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
    last_step = Family(LAST_STEP)
    for each in runs:
        last_step.add(each.last_step_at_s, each.run.name)
    return [*families, last_step, *_run_totals(runs, hot, now=now), *cost_families(runs)]


def _run_totals(runs: Iterable[RunNow], hot: HotStore, *, now: datetime) -> list[Family]:
    """Return what runs have amounted to so far, and what they are."""
    limit, resolve, tokens, steps, cost, info = map(
        Family, (LIMIT, RESOLVE, TOKENS, STEPS, COST, INFO)
    )
    counted = hot.totals()
    for each in runs:
        run = each.run
        limit.add(run.allreduce_limit_ratio, run.name)
        resolve.add(run.allreduce_resolve_ratio, run.name)
        tokens.add(max(run.n_tokens, counted.tokens.get(run.name, 0.0)), run.name)
        n_steps = max(run.last_step, counted.steps.get(run.name, 0))
        steps.add(n_steps, run.name, exemplar=latest_step(each))
        cost.add(run.usd_by(now), run.name)
        info.add(1.0, run.name, run.team, run.model, run.instance_type, run.phase)
    return [limit, resolve, tokens, steps, cost, info]


def latest_step(now: RunNow) -> Exemplar | None:
    """Return the latest step of a run, and how long steps take, as an example of its steps.

    It leads to the run: by name, and by address where that is short enough to be told.
    """
    if now.last_step is None or now.last_step_at_s is None or now.step_s is None:
        return None
    labels = {"run": now.run.name, "step": str(now.last_step)}
    url = f"{settings.BASE_URL}{now.run.get_absolute_url()}"
    if len("".join((*labels, *labels.values(), "url", url))) <= EXEMPLAR_CHARACTERS:
        labels["url"] = url
    return Exemplar(labels, now.step_s, round(now.last_step_at_s, 3))


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


def node_info_family(nodes: QuerySet[Node] | None = None) -> Family:
    """Return what every node that ought to report is; ``run`` is empty where it trains nothing."""
    family = Family(NODE_INFO)
    told = (Node.objects.all() if nodes is None else nodes).filter(run__finished_at=None)
    for name, run, *rest in told.values_list("name", "run__name", "instance_type", "source"):
        family.add(1.0, name, run or "", *rest)
    return family


def expected_nodes() -> list[str]:
    """Name the nodes that ought to report: all but those of runs that are over."""
    return list(Node.objects.filter(run__finished_at=None).values_list("name", flat=True))
