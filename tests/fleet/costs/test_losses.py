"""Cost of an alert: steps and dollars against the run's own earlier pace."""

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from fleet.alerts.text import AlertText, loss, plain
from fleet.costs.losses import measure_cost, update_alert_costs
from fleet.models import Alert, Node, Run
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, steps

Make = Callable[..., Alert]
USUAL_S, SLOW_S = 2.0, 3.0
SLOW = {"step_s": SLOW_S, "baseline_step_s": USUAL_S}
END = NOON + timedelta(seconds=300)


@pytest.fixture
def make(run: Run, limping: Node) -> Make:
    def make(**fields: Any) -> Alert:
        usual: dict[str, Any] = {
            "rule": "allreduce_share",
            "cause": "slow_core",
            "severity": Alert.Severity.PAGE,
            "subject": "run:llama",
            "run": run,
            "node": limping,
            "device": 2,
            "score": 1.2,
            "onset_at": NOON,
            "fired_at": NOON,
            "last_seen_at": NOON,
        }
        return Alert.objects.create(**usual | fields)

    return make


def train(hot: HotStore, first: int, n: int, since_s: float, **phases: float) -> float:
    """Store ``n`` equal steps that begin at ``since_s``; return when the last one ended."""
    each_s = sum(phases.values())
    done = steps(n_steps=n, first=first, ended_at_s=since_s + each_s)
    for phase, lasts_s in phases.items():
        done.phases[phase][:] = lasts_s
    gaps_s = each_s * np.arange(n)
    hot.append_steps(replace(done, ended_at_s=done.ended_at_s + gaps_s))
    return since_s + n * each_s


@pytest.fixture
def slowed(hot: HotStore) -> HotStore:
    """A hundred steps of two seconds, then a hundred of three, the onset between."""
    train(hot, 1, 100, NOON_S - 200, compute_s=USUAL_S)
    train(hot, 101, 100, NOON_S, compute_s=SLOW_S)
    return hot


def test_steps_of_a_loss_that_is_not_finite_are_all_lost(hot: HotStore, make: Make) -> None:
    train(hot, 1, 100, NOON_S - 200, compute_s=USUAL_S)
    train(hot, 101, 50, NOON_S, compute_s=USUAL_S)

    other = measure_cost(hot, make(), until=END)
    alert = make(rule="loss_not_finite", cause="loss_not_finite")
    cost = measure_cost(hot, alert, until=END)

    assert cost is not None
    assert other is not None
    # The job ended its steps as before, and then none.
    assert cost.lost_s == pytest.approx(cost.span_s)
    assert cost.n_steps == pytest.approx(other.n_steps + 50)
    alert.cost = asdict(cost)
    lost = loss(alert)
    assert lost is not None
    assert "nothing is trained" in lost.how


def test_less_than_half_a_step_is_no_loss(make: Make) -> None:
    cost = {"lost_s": 0.9, "span_s": 20.0, "n_steps": 0.45, "usd": 0.02, "usual_s": 2.0}

    alert = make(cost=cost)
    lost = loss(alert)
    alert.cost = cost | {"n_steps": 0.55}
    more = loss(alert)

    assert lost is not None
    assert (lost.short, lost.is_none) == ("no step", True)
    assert more is not None
    assert not more.is_none


def test_it_is_what_the_steps_took_beyond_the_usual_pace(slowed: HotStore, make: Make) -> None:
    cost = measure_cost(slowed, make(), until=END)

    assert cost is not None
    assert cost.usual_s == USUAL_S
    assert cost.n_done == pytest.approx(100, abs=1)
    assert cost.lost_s == pytest.approx(100 * (SLOW_S - USUAL_S), abs=SLOW_S)
    assert cost.n_steps == pytest.approx(cost.lost_s / USUAL_S)
    assert cost.usd == pytest.approx(cost.lost_s / 3600 * 4 * 21.5)


def test_a_run_that_continues_as_before_loses_nothing(hot: HotStore, make: Make) -> None:
    train(hot, 1, 250, NOON_S - 200, compute_s=USUAL_S)
    alert = make(rule="node_silent")
    update_alert_costs(hot, now=END)
    alert.refresh_from_db()
    lost = loss(alert)

    assert lost is not None
    assert lost.is_none
    assert lost.short == "no step"


def test_a_run_that_hangs_loses_all_of_the_time(hot: HotStore, make: Make) -> None:
    train(hot, 1, 100, NOON_S - 200, compute_s=USUAL_S)
    cost = measure_cost(hot, make(rule="hang", cause="hang"), until=END)

    assert cost is not None
    assert cost.n_done == 0
    assert cost.lost_s == pytest.approx(300, abs=0.01)


def test_the_step_under_way_is_not_counted_as_lost(hot: HotStore, make: Make) -> None:
    train(hot, 1, 100, NOON_S - 200, compute_s=USUAL_S)
    until = NOON + timedelta(seconds=USUAL_S * 0.9)
    cost = measure_cost(hot, make(), until=until)

    assert cost is not None
    assert cost.lost_s == 0


def test_a_checkpoint_is_no_loss(hot: HotStore, make: Make) -> None:
    train(hot, 1, 100, NOON_S - 200, compute_s=USUAL_S)
    over_s = train(hot, 101, 1, NOON_S, compute_s=USUAL_S, checkpoint_s=60.0)
    train(hot, 102, 130, over_s, compute_s=USUAL_S)
    cost = measure_cost(hot, make(), until=END)

    assert cost is not None
    assert cost.paused_s == pytest.approx(60)
    assert cost.lost_s == pytest.approx(0, abs=0.1)


def test_a_slow_checkpoint_costs_what_it_takes_beyond_the_usual(hot: HotStore, make: Make) -> None:
    train(hot, 1, 1, NOON_S - 230, compute_s=USUAL_S, checkpoint_s=20.0)
    train(hot, 2, 100, NOON_S - 200, compute_s=USUAL_S)
    over_s = train(hot, 102, 1, NOON_S, compute_s=USUAL_S, checkpoint_s=60.0)
    train(hot, 103, 130, over_s, compute_s=USUAL_S)
    slow = make(rule="checkpoint_slow", cause="checkpoint_slow")
    cost = measure_cost(hot, slow, until=END)

    assert cost is not None
    assert cost.lost_s == pytest.approx(40, abs=0.1)


@pytest.mark.parametrize("n_slow", [5, 60])
def test_batches_that_vary_from_step_to_step_are_one_pace(
    hot: HotStore, make: Make, n_slow: int
) -> None:
    rng = np.random.default_rng(4)
    for first, n, since_s, each_s in ((1, 100, NOON_S - 200, 2.0), (101, n_slow, NOON_S, 3.0)):
        done = steps(n_steps=n, first=first, ended_at_s=since_s + each_s)
        done.phases["compute_s"][:] = each_s
        tokens = done.tokens * (1 + 0.1 * rng.standard_normal(n))
        hot.append_steps(
            replace(done, ended_at_s=done.ended_at_s + each_s * np.arange(n), tokens=tokens)
        )
    cost = measure_cost(hot, make(), until=NOON + timedelta(seconds=3 * n_slow + 1))
    assert cost is not None
    assert cost.lost_s == pytest.approx(n_slow, rel=0.01)


def test_another_batch_is_another_pace(hot: HotStore, make: Make) -> None:
    hot.append_steps(steps(n_steps=100, ended_at_s=NOON_S - 200, compute_s=2.0, tokens=4096))
    hot.append_steps(
        steps(n_steps=50, first=101, ended_at_s=NOON_S + 3, compute_s=3.0, tokens=8192)
    )

    assert measure_cost(hot, make(), until=END) is None


@pytest.mark.parametrize(
    "evidence", [{"kind": "communication-bound layout"}, {"changed": ["scale"]}]
)
def test_what_is_not_comparable_has_no_price(
    slowed: HotStore, make: Make, evidence: dict[str, Any]
) -> None:
    assert measure_cost(slowed, make(evidence=evidence), until=END) is None


def test_without_steps_before_nothing_can_tell(hot: HotStore, make: Make) -> None:
    train(hot, 1, 100, NOON_S, compute_s=SLOW_S)

    assert measure_cost(hot, make(), until=END) is None


def test_what_concerns_no_run_has_no_price(slowed: HotStore, make: Make) -> None:
    assert measure_cost(slowed, make(run=None), until=END) is None


def test_an_open_alert_is_measured_again_and_again(slowed: HotStore, make: Make) -> None:
    alert = make()
    update_alert_costs(slowed, now=NOON + timedelta(seconds=100))
    alert.refresh_from_db()
    early = alert.cost
    update_alert_costs(slowed, now=NOON + timedelta(seconds=105))
    alert.refresh_from_db()
    assert alert.cost == early
    update_alert_costs(slowed, now=NOON + timedelta(seconds=200))
    alert.refresh_from_db()

    assert alert.cost["n_steps"] > 1.8 * early["n_steps"]


def test_a_loss_waits_for_the_steps_of_a_pause_of_trnwatch(slowed: HotStore, make: Make) -> None:
    """None came while trnwatch was stopped; the run went on."""
    at = END + timedelta(seconds=600)
    before, since = make(), make(onset_at=at, fired_at=at, last_seen_at=at, subject="node:trn-1")
    back_at = END + timedelta(seconds=590)
    update_alert_costs(slowed, now=END + timedelta(seconds=610), back_at=back_at)
    before.refresh_from_db()
    since.refresh_from_db()

    assert before.cost == {}
    assert since.cost != {}


def test_a_resolved_alert_is_measured_up_to_its_end_and_no_more(
    slowed: HotStore, make: Make
) -> None:
    alert = make(resolved_at=NOON + timedelta(seconds=100))
    update_alert_costs(slowed, now=END)
    alert.refresh_from_db()
    first = alert.cost
    update_alert_costs(slowed, now=END + timedelta(seconds=30))
    alert.refresh_from_db()

    assert first["span_s"] <= 100 + SLOW_S
    assert alert.cost == first


def test_a_loss_states_how_it_was_found(slowed: HotStore, make: Make) -> None:
    alert = make()
    update_alert_costs(slowed, now=END)
    alert.refresh_from_db()
    lost = loss(alert)

    assert lost is not None
    how = lost.how.replace("\u202f", " ")
    assert "steps ended in the" in how
    assert "At 2.00 s each, the median of the" in how
    assert "4 nodes cost $86.00 an hour" in how


@pytest.mark.parametrize("cost", [{}, {"until_s": 1.0}, {"lost_s": "x", "span_s": None}])
def test_a_cost_that_was_not_measured_is_absent(make: Make, cost: dict[str, Any]) -> None:
    assert loss(make(cost=cost)) is None


def test_an_accidental_recompile_is_a_loss_and_an_evaluation_is_none(
    hot: HotStore, make: Make
) -> None:
    train(hot, 1, 100, NOON_S - 200, compute_s=USUAL_S)
    over_s = train(hot, 101, 1, NOON_S, compute_s=USUAL_S, other_s=120.0)
    train(hot, 102, 120, over_s, compute_s=USUAL_S)
    recompiled = measure_cost(hot, make(rule="recompile", cause="recompile"), until=END)
    evaluated = measure_cost(hot, make(), until=END)

    assert recompiled is not None
    assert evaluated is not None
    assert recompiled.lost_s == pytest.approx(120, abs=0.1)
    assert evaluated.lost_s == pytest.approx(0, abs=0.1)


def test_what_another_alert_slowed_before_is_not_this_one_s_doing(
    hot: HotStore, make: Make
) -> None:
    train(hot, 1, 100, NOON_S - 260, compute_s=USUAL_S)
    train(hot, 101, 20, NOON_S - 60, compute_s=SLOW_S)
    train(hot, 121, 75, NOON_S, compute_s=4.0)
    cost = measure_cost(hot, make(), until=END)

    assert cost is not None
    assert cost.usual_s == SLOW_S


def test_a_loss_states_that_another_alert_s_is_in_it(slowed: HotStore, make: Make) -> None:
    alert, _ = make(), make(rule="node_silent", subject="node:limping")
    update_alert_costs(slowed, now=END)
    alert.refresh_from_db()
    lost = loss(alert)

    assert lost is not None
    assert "other alert of this run was open at the same time" in lost.how


def test_a_run_without_a_price_loses_steps_only(slowed: HotStore, make: Make, run: Run) -> None:
    run.usd_per_node_hour = 0.0
    run.save()
    alert = make()
    update_alert_costs(slowed, now=END)
    alert.refresh_from_db()
    lost = loss(alert)

    assert lost is not None
    assert lost.usd is None
    assert "$" not in lost.short


def test_two_alerts_that_slow_one_run_do_not_claim_its_loss_twice(
    slowed: HotStore, make: Make
) -> None:
    alert = make(rule="efa_degraded", cause="efa_latency", evidence=SLOW)
    make(rule="step_slow", evidence=SLOW)
    make(rule="preflight_missing", cause="unknown", node=None, device=None)
    update_alert_costs(slowed, now=END)
    alert.refresh_from_db()
    alone = plain(AlertText(Alert.objects.get(rule="preflight_missing"), END).verdict)
    texts = plain(AlertText(alert, END).verdict), plain(AlertText(alert, END).story)

    assert alert.cost["n_others"] == alert.cost["n_open_others"] == 1
    assert "1.50 by 2 alerts" in texts[0]
    assert "with 1 other alert of this run" in texts[1]
    assert "2 alerts" not in alone
