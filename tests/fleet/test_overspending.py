"""Hours of tokens above the expected cost: one alert, and none while a fault has one."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import transaction

from fleet.costs.drift import expected_now, judge_drift, update_cost_alerts
from fleet.costs.spending import update_spending
from fleet.models import Alert, Run
from fleet.simulation.runs import create_run
from telemetry.simulate.plan import Benign, Fault, Plan
from telemetry.simulate.shard import play, start_clock
from telemetry.store import durable
from telemetry.store.hot import HotStore
from tests.helpers import LLAMA, NOON, NOON_S

HOUR_S = 3600
LATE = NOON + timedelta(hours=10)


def trained(*, hours: float = 3.5, name: str = LLAMA.name, **reported: Any) -> Run:
    """Play a run of four nodes from noon on, by the ten seconds, and keep its steps."""
    spec = msgspec.structs.replace(LLAMA, name=name)
    run = create_run(spec, started_at=NOON)
    plan = Plan(run=spec, seed=5, epoch_s=NOON_S, **reported)
    played = play(
        plan, plan.shards[0], start_clock(plan), NOON_S + int(hours * HOUR_S), every_s=10
    )
    durable.write_steps(played.steps)
    Run.objects.update(phase=Run.Phase.TRAINING, last_step=int(played.steps.step[-1]))
    return run


def alerts_of(hot: HotStore, *, since: float = 0, hours: float = 3.5) -> set[str]:
    """Watch every ten minutes from some hour on; return the rules that fired."""
    found = set()
    for minute in range(int(since * 60) + 10, int(hours * 60) + 1, 10):
        now = NOON + timedelta(minutes=minute)
        update_spending(hot, now=now)
        found |= {alert.rule for alert in update_cost_alerts(hot, now=now)}
    return found


def slow(*, ends_s: int = 4 * HOUR_S) -> Fault:
    return Fault(
        kind="throttle",
        node="llama-01",
        device=2,
        start_s=600,
        duration_s=ends_s - 600,
        magnitude=2.5,
    )


@pytest.mark.django_db
def test_a_healthy_run_costs_what_it_is_estimated_to(hot: HotStore) -> None:
    run = trained()

    assert alerts_of(hot) == set()
    now = NOON + timedelta(hours=3.5)
    assert judge_drift(hot, run, is_open=False, now=now).is_judged


@pytest.mark.django_db
@pytest.mark.parametrize(
    "event",
    [
        {"kind": "checkpoint"},
        {"kind": "evaluation"},
        {"kind": "planned_compile"},
        {"kind": "batch_change", "magnitude": 2.0, "duration_s": 9_000},
        {"kind": "batch_change", "magnitude": 0.4, "duration_s": 9_000},
        {"kind": "scale_change", "magnitude": 0.5, "duration_s": 9_000},
        {"kind": "node_leaves", "node": "llama-03", "duration_s": 9_000},
        {"kind": "node_joins", "node": "llama-03"},
    ],
    ids=lambda event: f"{event['kind']} {event.get('magnitude', '')}",
)
def test_benign_events_are_no_drift(hot: HotStore, event: dict[str, Any]) -> None:
    trained(hours=5, benign=(Benign(run="llama", start_s=9_000, **event),))

    for model in (LLAMA.model, "our-own"):
        with transaction.atomic():
            Run.objects.update(model=model)
            assert alerts_of(hot, hours=5) == set(), model
            transaction.set_rollback(True)


@pytest.mark.django_db
def test_a_cost_that_no_one_explains_is_drift_by_the_estimate(hot: HotStore) -> None:
    trained(faults=(slow(),))

    assert alerts_of(hot) == {"cost_drift"}
    alert = Alert.objects.get()
    assert (alert.severity, alert.cause, alert.subject) == ("2-warn", "unknown", "run:llama")
    assert alert.evidence["expected_by"] == "estimate"
    assert alert.evidence["ratio"] > 0.3
    assert alert.evidence["usd_per_mtok"] > alert.evidence["expected_usd_per_mtok"]


@pytest.mark.django_db
def test_a_run_may_have_a_drift_limit_of_its_own(hot: HotStore) -> None:
    trained(faults=(slow(),))
    Run.objects.update(limits={"cost_drift.estimate_ratio": 5.0})

    assert alerts_of(hot) == set()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("n_similar", "changed", "rules"),
    [(2, {}, {"cost_drift"}), (1, {}, set()), (2, {"tp": 4}, set())],
    ids=["two", "one", "other layout"],
)
def test_a_run_that_is_slow_from_its_first_step_is_drift_by_similar_runs(
    hot: HotStore, n_similar: int, changed: dict[str, int], rules: set[str]
) -> None:
    fault = Fault(kind="throttle", run="llama", start_s=0, duration_s=4 * HOUR_S, magnitude=1.3)
    trained(faults=(fault,))
    for i in range(n_similar):
        trained(name=f"similar-{i}")
    Run.objects.filter(name__startswith="similar").update(**changed)

    assert alerts_of(hot) == rules
    for alert in Alert.objects.all():
        assert alert.subject == "run:llama"
        assert alert.evidence["expected_by"] == "similar"
        assert alert.evidence["ratio"] == pytest.approx(0.25, abs=0.05)


@pytest.mark.django_db
def test_of_a_model_that_no_one_knows_its_own_first_hours_tell(hot: HotStore) -> None:
    fault = Fault(
        kind="throttle",
        node="llama-01",
        device=2,
        start_s=5 * HOUR_S,
        duration_s=4 * HOUR_S,
        magnitude=2.5,
    )
    trained(hours=8, faults=(fault,))
    Run.objects.update(model="our-own")

    assert alerts_of(hot, hours=5) == set()
    assert alerts_of(hot, since=5, hours=8) == {"cost_drift"}
    assert Alert.objects.get().evidence["expected_by"] == "own"


@pytest.mark.django_db
@pytest.mark.parametrize("is_over", [True, False])
def test_what_another_alert_names_is_not_reported_twice(hot: HotStore, is_over: object) -> None:
    run = trained(faults=(slow(ends_s=3 * HOUR_S),))
    begins, ends = NOON + timedelta(seconds=600), NOON + timedelta(hours=3)
    Alert.objects.create(
        rule="core_slow",
        cause="throttle",
        severity=Alert.Severity.PAGE,
        subject="node:llama-01",
        run=run,
        node=run.nodes.get(name="llama-01"),
        score=2,
        onset_at=begins,
        fired_at=begins,
        last_seen_at=ends,
        resolved_at=ends if is_over else None,
    )

    assert alerts_of(hot) == set()


@pytest.mark.django_db
def test_drift_is_over_when_another_rule_names_the_fault(hot: HotStore) -> None:
    run = trained(faults=(slow(),))
    assert alerts_of(hot) == {"cost_drift"}
    at = NOON + timedelta(hours=3)
    Alert.objects.create(
        rule="step_slow",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=run,
        score=2,
        onset_at=at,
        fired_at=at,
        last_seen_at=at,
    )

    update_cost_alerts(hot, now=NOON + timedelta(hours=3.5, seconds=1))

    drift = Alert.objects.get(rule="cost_drift")
    assert drift.resolved_at is not None


@pytest.mark.django_db
def test_a_run_without_steps_keeps_its_alert(hot: HotStore) -> None:
    trained(faults=(slow(),))
    alerts_of(hot)

    update_cost_alerts(hot, now=LATE)

    assert Alert.objects.get().is_open


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("precision", "is_simulated", "by"),
    [("bf16", False, "estimate"), ("fp8", False, None), ("fp8", True, "estimate")],
)
def test_an_assumed_speed_is_no_yardstick_for_a_real_run(
    precision: str, *, is_simulated: bool, by: str | None
) -> None:
    run = create_run(LLAMA, started_at=NOON)
    run.instance_type, run.precision, run.is_simulated = "trn2.48xlarge", precision, is_simulated
    expected = expected_now(run, tokens=float(run.global_batch * run.seq_len))

    assert (expected and expected.by) == by
