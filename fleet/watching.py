"""From the store to findings to alerts: what is looked at, each second."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from fleet.alerting import Subject, reconcile
from fleet.models import Alert, Node, Run
from telemetry.blocks import Span
from telemetry.detect import RULES, Finding, Vitals, find, silent
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore

Hardware = Callable[[Sequence[str], int], Span]

# Enough steps to judge a change by, and to see that an alert's last five were calm.
WINDOW_S = 180
WINDOW_STEPS = 40
RUN_RULES = tuple(name for name, rule in RULES.items() if rule.subject == "run")
NODE_RULES = tuple(name for name, rule in RULES.items() if rule.subject == "node")


def watch(hot: HotStore, *, now: datetime) -> list[Alert]:
    """Look at every active run and every node, and reconcile the alerts; return the changed."""
    now_s = now.timestamp()
    findings: list[Finding] = []
    watched: set[Subject] = set()
    runs = list(Run.objects.active().prefetch_related("nodes"))
    open_rules = _open_rules()
    for run in runs:
        steps = window_of_steps(hot, run.name, now_s=now_s)
        hardware = _hardware(hot, run, now_s=now_s)
        findings += look_at(run, steps, hardware, now_s=now_s, open_rules=open_rules)
        watched |= watched_in(run, steps, now_s=now_s)
    findings += silent(_expected(hot, runs), now_s=now_s)
    watched |= {(rule, f"node:{name}") for rule in NODE_RULES for name in hot.last_seen()}
    watched.add(("monitoring_blind", "fleet"))
    return reconcile(findings, watched=watched, now=now)


def look_at(
    run: Run,
    steps: StepBatch,
    hardware: Hardware,
    *,
    now_s: float,
    open_rules: Iterable[Subject],
) -> list[Finding]:
    """Return what is wrong with one run, given its recent steps and access to its hardware."""
    nodes = tuple(node.name for node in run.nodes.all())
    vitals = Vitals(
        run=run.name,
        nodes=nodes,
        steps=steps,
        hardware=hardware,
        now_s=now_s,
        limit_ratio=run.allreduce_limit_ratio,
        resolve_ratio=run.allreduce_resolve_ratio,
        cores_per_device=run.nodes.all()[0].cores_per_device if nodes else 1,
    )
    mine = {rule for rule, subject in open_rules if subject == f"run:{run.name}"}
    return find(vitals, open_rules=mine)


def watched_in(run: Run, steps: StepBatch, *, now_s: float) -> set[Subject]:
    """Return the rules that could be judged: a run without news keeps its alerts."""
    if not len(steps) or now_s - steps.ended_at_s[-1] > WINDOW_S:
        return set()
    return {(rule, f"run:{run.name}") for rule in RUN_RULES}


def window_of_steps(hot: HotStore, run: str, *, now_s: float) -> StepBatch:
    """Return the last minutes of steps, or the last few dozen where steps are slow."""
    steps = hot.steps(run, since_s=now_s - WINDOW_S)
    if len(steps) >= WINDOW_STEPS:
        return steps
    return hot.steps(run, since_s=0.0).last(WINDOW_STEPS)


def _open_rules() -> list[Subject]:
    return list(Alert.objects.open().values_list("rule", "subject"))


def _hardware(hot: HotStore, run: Run, *, now_s: float) -> Hardware:
    nodes = list(run.nodes.all())
    shards = sorted({node.shard for node in nodes})
    names = [node.name for node in nodes]

    def window(metrics: Sequence[str], last_s: int) -> Span:
        end = int(now_s)
        return hot.window(shards, metrics, start=end - last_s + 1, end=end).of(names)

    return window


def _expected(hot: HotStore, runs: Iterable[Run]) -> dict[str, int]:
    """Return when each node that ought to report last did: those of active runs and real ones."""
    expected = {node.name for run in runs for node in run.nodes.all()}
    expected |= set(
        Node.objects.exclude(source=Node.Source.SIMULATED).values_list("name", flat=True)
    )
    return {name: tick for name, tick in hot.last_seen().items() if name in expected}


def at(second: float) -> datetime:
    """Return a Unix second as the aware time it is."""
    return datetime.fromtimestamp(second, UTC)
