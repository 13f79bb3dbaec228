"""Agents that are not there: shut down, restarted, replaced, with a wrong clock."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from redis import Redis

from fleet.alerts.watchers import watch_runs
from fleet.ingest.nodes import NodeIngest, store_batches
from fleet.ingest.phases import update_reported_runs
from fleet.ingest.steps import StepIngest
from fleet.models import Alert, AlertEvent, Node, Run
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, line
from tests.helpers import Clock

NODES = ("trn-0", "trn-1", "trn-2", "trn-3")
REPORT = {
    "neuron_runtime_data": [],
    "system_data": {"vcpu_usage": {"period": 5.0, "average_usage": {"user": 2.0, "idle": 98.0}}},
    "neuron_hardware_info": {"neuron_device_count": 1, "neuroncore_per_device_count": 2},
}


CORES = {core: {"neuroncore_utilization": 97.0} for core in ("0", "1")}
BUSY = {"neuroncore_counters": {"period": 5.0, "neuroncores_in_use": CORES}}


@dataclass
class Fleet:
    """Agents that report every five seconds, and one job; all looked at as often."""

    hot: HotStore
    clock: Clock
    agents: NodeIngest = field(default_factory=lambda: NodeIngest(keep_s=900))
    jobs: StepIngest = field(default_factory=lambda: StepIngest(time.monotonic))
    n_steps: int = 0
    # What processes on each node do.
    report: dict[str, Any] = field(default_factory=dict)
    # Agents whose clock is behind, by how much.
    behind_s: dict[str, float] = field(default_factory=dict)

    def go(
        self,
        seconds: int,
        *,
        nodes: Sequence[str] = NODES,
        workers: Sequence[str] = (),
        session: str = "1",
        stop: Sequence[str] = (),
        step_s: int = 5,
    ) -> None:
        """Let agents of ``nodes`` report, those that ``stop`` for the last time."""
        for passed_s in range(5, seconds + 1, 5):
            self.clock.now_s += 5.0
            for name in nodes:
                self.send(name, is_last=passed_s == 5 and name in stop)
            nodes = [name for name in nodes if name not in stop]
            self.train(workers, session, is_step=passed_s % step_s == 0, step_s=step_s)
            now = datetime.fromtimestamp(self.clock.now_s, UTC)
            update_reported_runs(self.hot, now=now)
            watch_runs(self.hot, now=now)

    def send(self, name: str, *, is_last: bool) -> None:
        now_s, clock_s = self.clock.now_s, self.clock.now_s - self.behind_s.get(name, 0.0)
        instance = {"instance_id": f"i-{name}", "instance_type": "trn1.2xlarge"}
        sent = {
            "at": clock_s,
            "seq": int(now_s),
            "stream": f"stream-{name}",
            "agent": {"version": "1"} | ({"stopping": True} if is_last else {}),
            "report": REPORT | self.report | {"instance_info": instance},
        }
        batch = self.agents.deliver(
            [json.dumps(sent).encode()], node=name, arrived_s=now_s, sent_s=clock_s, up_s=now_s
        )
        assert not batch.refused
        store_batches(self.hot, [batch])

    def train(self, workers: Sequence[str], session: str, *, is_step: bool, step_s: int) -> None:
        """Let workers report a step, or say that they are in one."""
        now_s, kind = self.clock.now_s, "step" if is_step else "beat"
        self.n_steps += is_step
        shown = (
            {"step": self.n_steps, "ended_at": now_s, "step_s": float(step_s)}
            if is_step
            else {"at": now_s, "activity": "step", "activity_s": 1.0}
        )
        lines = [line("run", session=session, **ABOUT)] if workers else []
        lines += [
            line(kind, session=session, worker=w, rank=r, n_workers=len(workers), **shown)
            for r, w in enumerate(workers)
        ]
        assert not self.jobs.deliver(self.hot, lines, arrived_s=now_s).refused

    def finish(self) -> None:
        ends = [line("end", session="1", worker=name) for name in NODES]
        self.jobs.deliver(self.hot, ends, arrived_s=self.clock.now_s)


@pytest.fixture
def fleet(db: None, redis: Redis) -> Fleet:
    clock = Clock(float(int(time.time()) // 10 * 10) - 4000)
    hot = HotStore(redis, now=clock)
    hot.gauge("listening_since_s", clock.now_s - 900)
    hot.gauge("watched_at_s", clock.now_s)
    return Fleet(hot, clock)


def said() -> list[tuple[str, str, str, str]]:
    return [
        (a.rule, a.cause, a.node.name if a.node else "", str(a.get_severity_display()))
        for a in Alert.objects.order_by("pk")
    ]


def retired() -> list[str]:
    return [*Node.objects.exclude(retired_at=None).order_by("name").values_list("name", flat=True)]


@pytest.mark.parametrize("had_a_job", [True, False])
def test_a_fleet_that_is_shut_down_pages_no_one(fleet: Fleet, *, had_a_job: bool) -> None:
    """As one that shrinks to nothing when its last job is done."""
    fleet.go(60, workers=NODES if had_a_job else ())
    if had_a_job:
        fleet.finish()
    fleet.go(60)
    fleet.go(200, stop=NODES)

    assert said() == []
    assert retired() == [*NODES]
    fleet.agents = NodeIngest(keep_s=900)
    fleet.go(5)
    assert retired() == []


def test_nodes_of_a_run_that_has_ended_may_vanish_without_a_word(fleet: Fleet) -> None:
    fleet.go(60, workers=NODES)
    fleet.finish()
    fleet.go(30)
    fleet.go(200, nodes=())

    assert Run.objects.get().finished_at is not None
    assert said() == []


def test_spares_that_vanish_without_a_word_are_missed(fleet: Fleet) -> None:
    fleet.go(60)
    fleet.go(100, stop=NODES[3:])
    fleet.go(60, nodes=NODES[:2])

    assert said() == [("node_silent", "node_silent", "trn-2", "warn")]
    assert retired() == ["trn-3"]


def test_an_agent_that_was_asked_to_end_may_take_90_s_while_its_run_goes_on(fleet: Fleet) -> None:
    fleet.go(60, workers=NODES)
    fleet.go(90, workers=NODES, stop=NODES[3:])
    assert said() == []
    fleet.go(15, nodes=NODES[:3], workers=NODES)

    assert said() == [("node_silent", "node_silent", "trn-3", "warn")]
    assert retired() == []


@pytest.mark.parametrize("step_s", [5, 60])
def test_an_agent_that_died_is_a_warning_while_its_worker_is_heard(
    fleet: Fleet, step_s: int
) -> None:
    fleet.go(120, workers=NODES, step_s=step_s)
    fleet.go(60, nodes=NODES[:3], workers=NODES, step_s=step_s)

    assert said() == [("node_silent", "node_silent", "trn-3", "warn")]


def test_a_node_that_is_replaced_is_no_page_once_its_run_goes_on(fleet: Fleet) -> None:
    fleet.go(120, workers=NODES, step_s=15)
    fleet.go(15, nodes=NODES[:3], workers=NODES[:3], step_s=1000)
    fleet.go(45, nodes=NODES[:3], workers=NODES[:3], step_s=1000)
    assert said() == [("node_silent", "node_crash", "trn-3", "page")]
    here = (*NODES[:3], "trn-9")
    fleet.go(120, nodes=here, workers=here, session="2")

    crash, spare = Alert.objects.order_by("pk")
    assert (
        AlertEvent.objects.get(alert=crash, kind="resolved").text == "real goes on without trn-3"
    )
    assert (crash.is_open, spare.is_open) == (False, True)
    assert [event.kind for event in spare.events.all()] == ["fired"]
    assert said()[1] == ("node_silent", "node_silent", "trn-3", "warn")


def test_a_node_whose_clock_is_behind_is_not_silent_when_it_is_first_heard(fleet: Fleet) -> None:
    fleet.behind_s["trn-2"] = 100.0
    fleet.go(60, nodes=NODES[:2])
    came_at = datetime.fromtimestamp(fleet.clock.now_s, UTC)
    fleet.send("trn-2", is_last=False)
    Node.objects.filter(name="trn-2").update(first_seen_at=came_at)
    fleet.go(120, nodes=NODES[:3], workers=NODES[:3])

    assert said() == []


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_job_whose_step_reports_do_not_arrive_has_not_ended(
    fleet: Fleet, *, is_busy: bool
) -> None:
    """As when the network between its workers and us fails; agents show busy cores."""
    runtime = {"pid": 7, "neuron_runtime_tag": "7", "error": "", "report": BUSY}
    fleet.report = {"neuron_runtime_data": [runtime] if is_busy else []}
    fleet.go(120, workers=NODES, step_s=15)
    fleet.go(60)

    assert said() == ([] if is_busy else [("hang", "workers_ended", "", "warn")])
