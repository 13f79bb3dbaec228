"""Workers of a slow run are asked for the runtime's trace once, if job and operator allow it."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from fleet.alerts import trace_requests
from fleet.alerts.trace_requests import update_trace_requests
from fleet.models import Alert, Run, TraceRequest
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES, step
from tests.fleet.api.training_jobs import line as shown
from tests.fleet.ingest.conftest import Deliver

NOW_S = float(int(time.time()))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW_S + seconds, UTC)


@pytest.fixture
def job(deliver: Deliver) -> Run:
    """A job of four workers that trace on request and do not time their exchange."""
    deliver(shown("run", **ABOUT), at_s=NOW_S)
    for node in NODES:
        beat(deliver, node)
    return Run.objects.get(name="real")


def beat(deliver: Deliver, node: str, *, after_s: float = 0.0, **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"n_workers": len(NODES), "runtime_trace": "on request"}
    line = shown("beat", worker=node, **usual | fields)
    return deliver(line, at_s=NOW_S + after_s).response()


def fire(run: Run, **fields: Any) -> Alert:
    usual: dict[str, Any] = {
        "rule": "step_slow",
        "cause": "unknown",
        "severity": Alert.Severity.WARN,
        "subject": f"run:{run.name}",
        "run": run,
        "score": 1.3,
        "onset_at": at(-900),
        "fired_at": at(0),
        "last_seen_at": at(0),
        "evidence": {"kind": "step", "step_s": 10.0},
    }
    return Alert.objects.create(**usual | fields)


def texts(alert: Alert) -> list[tuple[str, str]]:
    events = alert.events.values_list("kind", "text")
    return [(kind, text.replace("\u202f", " ")) for kind, text in events]


def test_the_workers_of_a_slow_run_are_asked_once_and_for_a_while(
    job: Run, deliver: Deliver, hot: HotStore
) -> None:
    assert "trace_s" not in beat(deliver, "trn-a")
    alert = fire(job)
    for second in range(3):
        update_trace_requests(hot, now=at(second))
    asked = [beat(deliver, node, after_s=5)["trace_s"] for node in NODES]
    assert "trace_s" not in beat(deliver, "trn-a", after_s=93)

    # Eight steps of 10 s, and until the slowest worker has read the request.
    assert asked == [87] * 4
    assert texts(alert) == [("trace_requested", "of 4 workers, for 92 s")]


def test_a_trace_that_names_no_node_says_how_many_steps_it_saw(
    job: Run, deliver: Deliver, hot: HotStore
) -> None:
    alert, other = fire(job), fire(job, rule="allreduce_share", subject="other")
    update_trace_requests(hot, now=at(0))
    for number in (1, 2):
        for node in NODES:
            trace = {"executing_s": 0.9, "barrier_s": 0.1, "collective_s": None}
            deliver(step(number, node, ended_at=NOW_S + 20 + number, **trace), at_s=NOW_S + 25)
    update_trace_requests(hot, now=at(100))
    assert len(texts(alert)) == 1
    for second in (108, 109):
        update_trace_requests(hot, now=at(second))
    assert [kind for kind, _ in texts(alert)] == ["trace_requested", "traced"]
    assert texts(alert)[1][1].startswith("in 2 traced steps no single worker")
    assert len(texts(other)) == 2


def test_a_worker_that_traces_on_request_costs_redis_no_round_trip_more(
    job: Run, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[str] = []
    for name in ("execute", "execute_all"):
        called = getattr(HotStore, name)

        def counted(*given: Any, name: str = name, called: Any = called) -> Any:
            trips.append(name)
            return called(*given)

        monkeypatch.setattr(HotStore, name, counted)

    def n_trips(**fields: Any) -> int:
        trips.clear()
        beat(deliver, NODES[0], **fields)
        return len(trips)

    assert 0 < n_trips() == n_trips(runtime_trace="libnrt is too old")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("libnrt.so.1 is not loaded", "on 3 workers libnrt.so.1 is not loaded"),
        ("on request", "no worker reports why: look at a worker's log"),
    ],
)
def test_a_trace_that_does_not_arrive_says_why(
    job: Run, deliver: Deliver, hot: HotStore, state: str, why: str
) -> None:
    alert = fire(job)
    update_trace_requests(hot, now=at(0))
    for node in NODES[:3]:
        beat(deliver, node, after_s=20, runtime_trace=state)
    update_trace_requests(hot, now=at(120))
    assert texts(alert)[1] == ("traced", f"no traced step has arrived; {why}")


def test_a_process_that_ends_between_the_row_and_the_request_has_asked_for_as_long(
    job: Run, deliver: Deliver, hot: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    alert = fire(job)
    with monkeypatch.context() as patch:
        patch.setattr(trace_requests.LiveReporters, "hand_out", interrupted)
        with pytest.raises(KeyboardInterrupt):
            update_trace_requests(hot, now=at(0))
    assert [kind for kind, _ in texts(alert)] == ["trace_requested"]
    assert "trace_s" not in beat(deliver, NODES[0], after_s=1)

    # Meanwhile the evidence may have changed: the trace lasts as long as was noted.
    Alert.objects.update(evidence={"kind": "step", "step_s": 30.0})
    update_trace_requests(hot, now=at(10))
    assert beat(deliver, NODES[0], after_s=10)["trace_s"] == 82
    update_trace_requests(hot, now=at(107))
    assert len(texts(alert)) == 1
    update_trace_requests(hot, now=at(108))
    assert [kind for kind, _ in texts(alert)] == ["trace_requested", "traced"]


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_request_survives_that_redis_loses_it(job: Run, deliver: Deliver, hot: HotStore) -> None:
    fire(job)
    update_trace_requests(hot, now=at(0))
    hot.execute("DEL", "trace:request:real")
    update_trace_requests(hot, now=at(5))
    assert beat(deliver, NODES[0], after_s=6)["trace_s"] == 86


def test_a_trace_is_judged_however_long_after_the_alert_fired_it_ends(
    job: Run, hot: HotStore
) -> None:
    alert = fire(job, fired_at=at(-590), evidence={"kind": "step", "step_s": 40.0})
    for second in (0, 320):
        update_trace_requests(hot, now=at(second))
    assert [kind for kind, _ in texts(alert)] == ["trace_requested", "traced"]


@pytest.mark.parametrize(
    "fields",
    [
        {"evidence": {"kind": "waiting"}},
        {"cause": "recompile"},
        {"rule": "hang"},
        {"fired_at": at(-601)},
        {"resolved_at": at(-1)},
        {"evidence": {"kind": "step", "nodes": ["trn-a", "trn-b"]}},
    ],
)
def test_other_alerts_ask_for_nothing(job: Run, hot: HotStore, fields: dict[str, Any]) -> None:
    alert = fire(job, **fields)
    update_trace_requests(hot, now=at(0))
    assert texts(alert) == []


def test_workers_that_do_not_allow_it_and_servers_that_forbid_it_are_not_asked(
    job: Run, deliver: Deliver, hot: HotStore, settings: Settings
) -> None:
    alert = fire(job)
    settings.REQUEST_TRACES = False
    update_trace_requests(hot, now=at(0))
    assert texts(alert) == []

    settings.REQUEST_TRACES = True
    for node in NODES[1:]:
        beat(deliver, node, after_s=1, runtime_trace="libnrt is too old")
    # A single worker has no peers.
    update_trace_requests(hot, now=at(1))
    assert texts(alert) == []

    beat(deliver, NODES[1], after_s=2)
    update_trace_requests(hot, now=at(2))
    assert "trace_s" not in beat(deliver, NODES[2], after_s=3, runtime_trace="libnrt is too old")
    assert "trace_s" in beat(deliver, NODES[1], after_s=3)
    settings.REQUEST_TRACES = False
    assert "trace_s" not in beat(deliver, NODES[1], after_s=4)


@pytest.mark.parametrize(
    ("late_wait_s", "result"),
    [
        (0.02, "the others wait for trn-c: they wait 480 ms per step, it waits 20.0 ms"),
        (0.4, "the waits of the workers are known: see the chart"),
    ],
)
def test_a_trace_says_whether_it_shows_the_node_that_is_named_meanwhile(
    job: Run, deliver: Deliver, hot: HotStore, late_wait_s: float, result: str
) -> None:
    alert = fire(job)
    update_trace_requests(hot, now=at(0))
    for number in (1, 2):
        for node in NODES:
            wait_s = late_wait_s if node == "trn-c" else 0.48
            trace = {"executing_s": 0.95, "barrier_s": wait_s, "collective_s": None}
            deliver(step(number, node, ended_at=NOW_S + 20 + number, **trace), at_s=NOW_S + 25)
    Alert.objects.update(evidence={"kind": "step", "nodes": ["trn-c", "trn-b"]})
    update_trace_requests(hot, now=at(0) + timedelta(minutes=3))
    assert texts(alert)[1] == ("traced", f"in 2 traced steps {result}")


def test_what_is_resolved_gets_no_result(job: Run, hot: HotStore) -> None:
    alert = fire(job)
    update_trace_requests(hot, now=at(0))
    Alert.objects.update(resolved_at=at(30))
    update_trace_requests(hot, now=at(120))
    assert [kind for kind, _ in texts(alert)] == ["trace_requested"]
    assert TraceRequest.objects.get().state(at(120)) == "judged"


def test_the_state_of_a_request_is_known_at_any_time(job: Run, hot: HotStore) -> None:
    fire(job)
    update_trace_requests(hot, now=at(0))
    request = TraceRequest.objects.get()
    states = [request.state(at(second)) for second in (1, 91, 93, 106, 122)]
    assert states == ["running", "running", "assembling", "assembling", "overdue"]

    update_trace_requests(hot, now=at(110))
    request.refresh_from_db()
    assert [request.state(at(second)) for second in (91, 109, 110)] == [
        "running",
        "assembling",
        "judged",
    ]
