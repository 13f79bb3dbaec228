"""Alerts of jobs over time: outages of trnwatch, restarts with other ranks, nodes that left."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pytest
from redis import Redis

from fleet.alerts.evaluate import WATCHES
from fleet.alerts.watchers import watch_runs
from fleet.ingest.phases import update_reported_runs
from fleet.ingest.steps import StepIngest
from fleet.models import Alert, Node, Run
from fleet.simulation.runs import create_run
from telemetry.blocks import Block, Span
from telemetry.ingest.timing import shard_of
from telemetry.simulate.plan import Fault, Plan
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import line
from tests.helpers import LLAMA, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(float(int(time.time())) - 4000)


@pytest.fixture
def hot(redis: Redis, clock: Clock) -> HotStore:
    return HotStore(redis, now=clock)


@dataclass
class Unreported:
    """A run whose job reports no steps: only agents do; a part of it is slow from 150 s on."""

    hot: HotStore
    clock: Clock
    run: Run
    span: Span

    def go(self, until_s: int, *, looks: bool = True, every_s: int = 5) -> None:
        """Store what comes until some second from the start; look, or not, as in an outage."""
        began_s = int(self.run.started_at.timestamp())
        for now_s in range(int(self.clock.now_s) + every_s, began_s + until_s + 1, every_s):
            before_s, self.clock.now_s = int(self.clock.now_s), float(now_s)
            ticks = self.span.ticks
            rows = np.flatnonzero((ticks > before_s) & (ticks <= now_s))
            if rows.size:
                self.hot.append(
                    self.span.between(int(ticks[rows[0]]), int(ticks[rows[-1]])).blocks()
                )
            if looks:
                watch_runs(self.hot, now=datetime.fromtimestamp(now_s, UTC))


@pytest.fixture
def unreported(db: None, hot: HotStore, clock: Clock) -> Callable[[str, float], Unreported]:
    def make(kind: str, magnitude: float) -> Unreported:
        began_s = int(clock.now_s)
        run = create_run(LLAMA, started_at=datetime.fromtimestamp(began_s, UTC))
        fault = Fault(
            kind=kind, node=f"{LLAMA.name}-02", device=5, start_s=150, duration_s=9000,
            magnitude=magnitude,
        )  # fmt: skip
        plan = Plan(run=LLAMA, seed=3, epoch_s=began_s, faults=(fault,))
        played = play(plan, f"{LLAMA.name}/0", start_clock(plan), began_s + 900)
        hot.gauge("listening_since_s", began_s - 900)
        hot.gauge("watched_at_s", began_s)
        return Unreported(hot, clock, run, played.span)

    return make


def said() -> list[tuple[str, str, str, list[str]]]:
    return [
        (alert.state, alert.cause, alert.node.name if alert.node else "", kinds(alert))
        for alert in Alert.objects.order_by("pk")
    ]


def kinds(alert: Alert) -> list[str]:
    return [str(each) for each in alert.events.order_by("pk").values_list("kind", flat=True)]


@pytest.mark.parametrize("outage", ["restart", "no look"])
def test_an_alert_of_a_run_without_step_reports_outlasts_an_outage_of_trnwatch(
    unreported: Callable[[str, float], Unreported], outage: str
) -> None:
    """Another process goes on, or nothing looks for seven minutes; the fault lasts."""
    kind = "efa_latency"
    run = unreported(kind, 6.0)
    run.go(300)
    [(state, cause, node, _)] = before = said()
    assert (state, cause, node) == ("firing", kind, f"{LLAMA.name}-02"), before
    if outage == "restart":
        WATCHES.clear()
    run.go(720, looks=outage != "no look")
    run.go(820)

    [(state, cause, node, events)] = after = said()
    assert "resolved" not in events, after
    assert (state, cause, node) == ("firing", kind, f"{LLAMA.name}-02"), after


NODES = tuple(f"trn-{i:02d}" for i in range(8))
ABOUT = {
    "model": "llama2-7b", "instance_type": "trn1.32xlarge", "n_nodes": 8, "tp": 8, "pp": 2,
    "seq_len": 4096, "global_batch": 64,
}  # fmt: skip


@dataclass
class Job:
    """A healthy job of two pipeline stages, the second of which has 10 % more to do."""

    hot: HotStore
    clock: Clock
    intake: StepIngest
    rng: np.random.Generator

    def train(
        self, session: str, nodes: Sequence[str], steps: range, *, pp: int = 2, longer: float = 1.1
    ) -> None:
        """Make a step a second, each worker's reported by itself; look each second."""
        n_stages = max(1, pp)
        self.intake.deliver(
            self.hot,
            [line("run", run="staged", session=session, **{**ABOUT, "pp": pp})],
            arrived_s=self.clock.now_s,
        )
        for number in steps:
            is_look = number % 5 == 0
            noise = np.exp(0.003 * self.rng.standard_normal(len(nodes)))
            stage = np.arange(len(nodes)) * n_stages // len(nodes)
            compute_s = 0.8 * np.where(stage == n_stages - 1, longer, 1.0) * noise
            whole_s = float(compute_s.max()) + 0.1
            self.clock.now_s += 1.0
            self.intake.deliver(
                self.hot,
                [
                    line(
                        "step", run="staged", session=session, worker=node, rank=rank,
                        stage=int(stage[rank]), n_workers=len(nodes), step=number,
                        ended_at=self.clock.now_s, step_s=whole_s,
                        collective_s=whole_s - float(compute_s[rank]),
                    )
                    for rank, node in enumerate(nodes)
                ],
                arrived_s=self.clock.now_s,
            )  # fmt: skip
            if is_look:
                self.look()

    def look(self) -> None:
        now = datetime.fromtimestamp(self.clock.now_s, UTC)
        update_reported_runs(self.hot, now=now)
        watch_runs(self.hot, now=now)

    def rest(self, seconds: int) -> None:
        """Let the job be away for a while: it restarts."""
        for _ in range(seconds // 5):
            self.clock.now_s += 5.0
            self.look()


@pytest.fixture
def job(db: None, hot: HotStore, clock: Clock) -> Job:
    hot.gauge("listening_since_s", clock.now_s - 900)
    hot.gauge("watched_at_s", clock.now_s)
    return Job(hot, clock, StepIngest(time.monotonic), np.random.default_rng(3))


def open_about_steps() -> list[tuple[str, str, str, str]]:
    return [
        (a.rule, a.cause, a.node.name if a.node else "", str(a.get_severity_display()))
        for a in Alert.objects.open()
        if a.rule != "hang"
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_restart_that_gives_nodes_other_ranks_accuses_none(job: Job, *, swapped: bool) -> None:
    """As torchrun does: ranks follow the order in which nodes arrive."""
    job.train("1", NODES, range(1, 150))
    assert open_about_steps() == []
    job.rest(20)
    nodes = [*NODES]
    if swapped:
        nodes[3], nodes[4] = nodes[4], nodes[3]
    job.train("2", nodes, range(100, 250))

    assert open_about_steps() == []


def test_a_restart_with_a_pipeline_is_compared_stage_by_stage(job: Job) -> None:
    """It had no pipeline before."""
    job.train("1", NODES, range(1, 120), pp=1, longer=1.0)
    assert open_about_steps() == []
    job.rest(20)
    job.train("2", [f"{node}-new" for node in NODES], range(100, 250), pp=2)

    assert open_about_steps() == []
    assert WATCHES[0]["staged"].steps.n_stages == 2


def test_a_restart_of_a_reported_job_begins_a_new_plan(job: Job) -> None:
    """As that of a simulated one does: with fewer compiler optimizations steps take longer."""
    job.train("1", NODES, range(1, 150), pp=1, longer=1.0)
    job.rest(20)
    job.train("2", NODES, range(100, 250), pp=1, longer=1.4)

    assert open_about_steps() == []


def test_a_node_that_its_job_replaced_may_be_shut_down(job: Job) -> None:
    def agents(*nodes: str) -> None:
        values = {
            "core_utilization_ratio": np.full((1, 32), 0.7),
            "vcpu_usage_ratio": np.ones((1, 1)),
        }
        job.hot.append(
            Block(shard_of(name), int(job.clock.now_s), (name,), values) for name in nodes
        )

    def train(session: str, nodes: Sequence[str], steps: range, up: Iterable[str]) -> None:
        for number in steps:
            job.train(session, nodes, range(number, number + 1), pp=1, longer=1.0)
            agents(*up)

    train("1", NODES, range(1, 40), NODES)
    others = (*NODES[:7], "trn-spare")
    job.rest(20)
    train("2", others, range(30, 70), {*NODES, *others})
    assert Node.objects.get(name="trn-spare").run is not None
    # The old one is switched off for repair.
    train("2", others, range(70, 130), others)

    about_old = Alert.objects.open().filter(node__name=NODES[7], severity=Alert.Severity.PAGE)
    assert [(alert.rule, str(alert.run)) for alert in about_old] == []
