"""Watchers share the runs: they find together what one finds, and none waits for a slow one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pytest_django import Settings
from redis import Redis

from fleet.alerts.evaluate import WATCHES, forget_idle
from fleet.alerts.failures import rule_failures
from fleet.alerts.memory import KEY, recall
from fleet.alerts.watch_monitor import last_evaluation
from fleet.alerts.watchers import HANGS_S, LOOKS, TURNS, WATCHES_S, WORKER, watch_runs, worker_of
from fleet.models import Alert, Run
from fleet.runs.state import WAIT_AFTER_PAUSE_S
from fleet.simulation.runs import create_run
from telemetry.blocks import Span
from telemetry.simulate.plan import Fault, Plan
from telemetry.simulate.shard import play, start_clock
from telemetry.steps import RETURN_S, StepBatch
from telemetry.store.hot import HotStore
from tests.helpers import LLAMA, Clock

LENGTH_S = 400
FAULT_AT_S = 300


@pytest.fixture
def clock() -> Clock:
    return Clock(float(int(time.time())))


@pytest.fixture
def hot(redis: Redis, clock: Clock) -> HotStore:
    return HotStore(redis, now=clock)


@pytest.fixture
def simulated(db: None, hot: HotStore, clock: Clock) -> Callable[..., list[Run]]:
    """Give a function that makes two runs, one of each of two watchers, and plays their past."""

    def make(*kinds: str, until_s: float = 0.0, zone: str = "") -> list[Run]:
        runs: list[Run] = []
        began_s = int(clock.now_s) - LENGTH_S
        for name in ("llama", "alpaca"):
            spec = msgspec.structs.replace(LLAMA, name=name, nodes_per_rack=4)
            run = create_run(
                spec, started_at=datetime.fromtimestamp(began_s, UTC), zone=zone or name
            )
            faults = [
                Fault(
                    kind=kind,
                    node=f"{name}-02",
                    device=2,
                    start_s=FAULT_AT_S,
                    duration_s=600,
                    magnitude=6.0,
                )
                for kind in kinds
            ]
            plan = Plan(run=spec, seed=3, epoch_s=began_s, faults=tuple(faults))
            played = play(plan, f"{name}/0", start_clock(plan), int(clock.now_s - until_s))
            hot.append(played.span.blocks())
            hot.append_steps(played.steps)
            runs.append(run)
        assert {run.pk % 2 for run in runs} == {0, 1}
        hot.gauge("listening_since_s", began_s)
        hot.gauge("watched_at_s", clock.now_s)
        return runs

    return make


def turn(hot: HotStore, clock: Clock, watchers: range, *, of: int) -> list[bool]:
    """Let each of these watchers look once; return whether each reconciled."""
    now, ended = datetime.fromtimestamp(clock.now_s, UTC), []
    for watcher in watchers:
        clock.now_s += 0.1
        ended.append(watch_runs(hot, now=now, watcher=watcher, of=of))
    clock.now_s = now.timestamp()
    return ended


def found() -> list[tuple[Any, ...]]:
    """Return what alerts say, apart from when they were found."""
    return sorted(
        (alert.rule, alert.subject, alert.cause, alert.nodes, str(alert.run), len(alert.parts))
        for alert in Alert.objects.open()
    )


@pytest.mark.parametrize("of", [1, 2])
def test_watchers_find_together_what_one_finds(
    hot: HotStore, clock: Clock, simulated: Callable[..., list[Run]], of: int
) -> None:
    """A rack that is slow for two runs is one alert, whichever watcher looks at a run."""
    simulated("efa_latency", zone="shared")
    end_s = clock.now_s

    for age_s in range(LENGTH_S - FAULT_AT_S + 10, -1, -10):
        clock.now_s = end_s - age_s
        hot.gauge("watched_at_s", clock.now_s)
        # The last one to look reconciles.
        assert turn(hot, clock, range(of), of=of)[-1]

    [(rule, _, cause, nodes, _, n_parts)] = found()
    assert (rule, cause, nodes) == ("allreduce_share", "efa_latency", ["alpaca-02", "llama-02"])
    assert n_parts == 2


def test_silence_is_found_by_the_one_that_reconciles(
    hot: HotStore, clock: Clock, simulated: Callable[..., list[Run]]
) -> None:
    simulated("node_silent")
    turn(hot, clock, range(2), of=2)
    assert [row[:2] for row in found()] == [
        ("node_silent", "node:alpaca-02"),
        ("node_silent", "node:llama-02"),
    ]


def test_where_no_node_of_any_watcher_reports_monitoring_is_blind(
    hot: HotStore, clock: Clock, simulated: Callable[..., list[Run]]
) -> None:
    simulated(until_s=60)
    turn(hot, clock, range(2), of=2)
    assert [row[0] for row in found()] == ["monitoring_blind"]


@pytest.mark.parametrize("silence_s", [8, 60])
def test_after_a_silence_of_all_nodes_have_time_to_return(
    hot: HotStore, clock: Clock, simulated: Callable[..., list[Run]], silence_s: int
) -> None:
    """Senders wait for up to half a minute between two attempts, also after a cut of seconds."""
    [llama, _] = simulated(until_s=silence_s)
    turn(hot, clock, range(1), of=1)
    before = {row[0] for row in found()}
    spec = msgspec.structs.replace(LLAMA, name="llama", nodes_per_rack=4)
    plan = Plan(run=spec, seed=3, epoch_s=int(llama.started_at.timestamp()))
    silent = []
    for passed_s in (20, RETURN_S + 1):
        clock.now_s += passed_s
        played = play(plan, "llama/0", start_clock(plan), int(clock.now_s))
        hot.append(played.span.blocks())
        hot.gauge("watched_at_s", clock.now_s)
        turn(hot, clock, range(1), of=1)
        silent.append({node for row in found() if row[0] == "node_silent" for node in row[3]})

    assert before == ({"monitoring_blind"} if silence_s == 60 else set())
    assert silent[0] == set()
    assert silent[1] == {f"alpaca-0{i}" for i in range(4)}


def test_a_simulator_that_catches_up_calls_no_node_silent(
    hot: HotStore, clock: Clock, simulated: Callable[..., list[Run]]
) -> None:
    simulated(until_s=60)
    hot.gauge("caught_up_at_s", clock.now_s)
    watch_runs(hot, now=datetime.fromtimestamp(clock.now_s, UTC))
    assert not Alert.objects.exists()

    hot.gauge("caught_up_at_s", clock.now_s - WAIT_AFTER_PAUSE_S)
    watch_runs(hot, now=datetime.fromtimestamp(clock.now_s, UTC))
    assert Alert.objects.get().rule == "monitoring_blind"


def test_one_that_is_late_delays_no_other_and_its_alerts_stay(
    hot: HotStore, clock: Clock, redis_url: str, simulated: Callable[..., list[Run]]
) -> None:
    runs = {run.pk % 2: run for run in simulated("node_silent")}
    turn(hot, clock, range(2), of=2)
    its, others = (Alert.objects.get(run=runs[i]) for i in (1, 0))
    seen_at = its.last_seen_at

    # It is waited for, but not for long.
    ended = []
    for _ in range(9):
        clock.now_s += 1
        ended += turn(hot, clock, range(1), of=2)
    assert ended == [False] * 3 + [True] * 6

    for alert in (its, others):
        alert.refresh_from_db()
    assert (its.is_open, its.last_seen_at) == (True, seen_at)
    assert (others.is_open, others.last_seen_at > seen_at) == (True, True)
    [failure] = rule_failures(hot)
    assert (failure.run, failure.error) == (
        runs[1].name,
        "not evaluated for 9 s: watcher 1 is late",
    )
    # What checks from outside whether all is evaluated reads the time of the last one.
    assert last_evaluation(redis_url)() == seen_at


def test_one_that_is_slow_is_not_waited_for(
    hot: HotStore, clock: Clock, simulated: Callable[..., list[Run]]
) -> None:
    simulated()
    began = datetime.fromtimestamp(clock.now_s, UTC)
    clock.now_s += 2.5
    watch_runs(hot, now=began, watcher=1, of=2)

    assert turn(hot, clock, range(1), of=2) == [True]


def test_what_another_release_stores_stops_no_watcher(
    hot: HotStore, clock: Clock, simulated: Callable[..., list[Run]]
) -> None:
    simulated()
    hot.execute("HSET", LOOKS, 1, msgspec.msgpack.encode({"of": "two"}))

    assert turn(hot, clock, range(1), of=2) == [True]


def test_one_worker_is_a_watcher_until_it_is_late(hot: HotStore) -> None:
    assert [worker_of(hot, name) for name in ("a@x", "b@x", "a@x", "b@x")] == ["a@x"] * 4
    assert 0 < int(hot.execute("TTL", WORKER.format(0))) <= WATCHES_S
    # It reads the last minutes of many nodes first, and so would another one.
    assert worker_of(hot, "a@x", n_nodes=30_000) == "a@x"
    assert int(hot.execute("TTL", WORKER.format(0))) > WATCHES_S + 25

    # It does not evaluate for so long that another one may.
    hot.execute("DEL", WORKER.format(0))
    assert [worker_of(hot, name) for name in ("b@x", "a@x")] == ["b@x"] * 2


def test_a_worker_with_other_tasks_is_one_until_a_worker_without_comes(hot: HotStore) -> None:
    """Its chores may take minutes."""
    assert worker_of(hot, "chores@x", stands_in=True) == "chores@x"
    assert worker_of(hot, "more@x", stands_in=True) == "chores@x"
    assert worker_of(hot, "watch@x") == "watch@x"
    assert worker_of(hot, "chores@x", stands_in=True) == "watch@x"

    hot.execute("DEL", WORKER.format(0))
    assert worker_of(hot, "chores@x", stands_in=True) == "chores@x"


def test_a_worker_is_two_watchers_until_another_one_comes(hot: HotStore) -> None:
    assert [worker_of(hot, "a@x", watcher=i, of=2) for i in (0, 1, 0, 1)] == ["a@x"] * 4
    assert worker_of(hot, "b@x", watcher=1, of=2) == "b@x"
    # Now each is one, and stays it.
    for name in ("a@x", "b@x"):
        assert [worker_of(hot, name, watcher=i, of=2) for i in (0, 1)] == ["a@x", "b@x"]


def test_a_run_that_hangs_one_watcher_hangs_no_other(hot: HotStore, clock: Clock) -> None:
    for watcher, name in enumerate(("a@x", "b@x")):
        worker_of(hot, name, watcher=watcher, of=2)
    hot.execute("HSET", TURNS, "0:ended", clock.now_s - 6, "0:began", clock.now_s - 5)
    hot.execute("DEL", WORKER.format(0))

    assert worker_of(hot, "b@x", watcher=0, of=2) == ""
    # A worker that is no watcher may try, and one that is after a while: it may have been killed.
    clock.now_s += HANGS_S
    assert worker_of(hot, "b@x", watcher=0, of=2) == "b@x"
    hot.execute("DEL", WORKER.format(0))
    clock.now_s -= HANGS_S
    assert worker_of(hot, "c@x", watcher=0, of=2) == "c@x"
    # One that ended its last turn was lost between two: it hung nowhere.
    hot.execute("DEL", WORKER.format(0))
    hot.execute("HSET", TURNS, "0:ended", clock.now_s - 4)
    assert worker_of(hot, "b@x", watcher=0, of=2) == "b@x"


def test_a_worker_forgets_the_runs_of_a_watcher_that_another_one_has_become(
    hot: HotStore, simulated: Callable[..., list[Run]], clock: Clock
) -> None:
    simulated("slow_core", "slow_core")
    now = datetime.fromtimestamp(clock.now_s, UTC)
    for watcher in (0, 1):
        watch_runs(hot, now=now, watcher=watcher, of=2)
    assert [len(WATCHES[watcher]) for watcher in (0, 1)] == [1, 1]

    watch_runs(hot, now=now + timedelta(seconds=100), watcher=1, of=2)
    forget_idle(now_s=clock.now_s + 119)
    assert len(WATCHES) == 2
    forget_idle(now_s=clock.now_s + 121)
    assert [*WATCHES] == [1]


@dataclass
class Slow:
    """A run in which all cores are slow for a while; its store keeps two minutes."""

    hot: HotStore
    clock: Clock
    run: Run
    span: Span
    steps: StepBatch

    def watch(self, until_s: int) -> None:
        """Store what comes until some second from the start, and look every ten."""
        began_s = self.run.started_at.timestamp()
        for now_s in range(int(self.clock.now_s), int(began_s) + until_s, 10):
            self.clock.now_s = float(now_s)
            ended_s, blocks = self.steps.ended_at_s, self.span.blocks()
            self.hot.append([each for each in blocks if now_s - 10 < each.tick <= now_s])
            self.hot.append_steps(self.steps[(ended_s > now_s - 10) & (ended_s <= now_s)])
            self.hot.gauge("watched_at_s", now_s)
            watch_runs(self.hot, now=datetime.fromtimestamp(now_s, UTC))


@pytest.fixture
def slow(db: None, redis: Redis, clock: Clock) -> Slow:
    began_s = int(clock.now_s)
    hot = HotStore(redis, now=clock, keep_s=60)
    run = create_run(LLAMA, started_at=datetime.fromtimestamp(began_s, UTC))
    fault = Fault(kind="throttle", run=LLAMA.name, start_s=200, duration_s=LENGTH_S, magnitude=1.4)
    plan = Plan(run=LLAMA, seed=3, epoch_s=began_s, faults=(fault,))
    played = play(plan, f"{LLAMA.name}/0", start_clock(plan), began_s + 800)
    hot.gauge("listening_since_s", began_s)
    return Slow(hot, clock, run, played.span, played.steps)


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_next_process_goes_on_from_what_is_known_of_a_run(
    slow: Slow, *, is_kept: bool
) -> None:
    """It knows what was usual before a problem, although no step of then is stored any more.

    By what the process before kept, or, where that is lost, by the open alert.
    """
    slow.watch(until_s=500)
    [before] = Alert.objects.open()
    WATCHES.clear()
    slow.hot.execute("DEL", "" if is_kept else KEY.format(slow.run.pk))
    slow.watch(until_s=590)

    [alert] = Alert.objects.open()
    assert (alert.pk, alert.state, alert.cause) == (before.pk, "firing", before.cause)
    [problem] = WATCHES[0][slow.run.name].shown
    usual_s = before.evidence["baseline_step_s"]
    assert problem.extra["baseline_step_s"] == pytest.approx(usual_s, rel=1e-6)
    slow.watch(until_s=800)
    assert not Alert.objects.open().exists()


@pytest.mark.parametrize("is_ours", [True, False])
def test_no_process_recalls_what_another_secret_signed(
    slow: Slow, settings: Settings, *, is_ours: bool
) -> None:
    slow.watch(until_s=150)
    watches: dict[str, Any] = {}
    settings.SECRET_KEY += "" if is_ours else "2"
    recall(slow.hot, [slow.run], watches)
    assert [*watches] == ([slow.run.name] if is_ours else [])
