"""Texts follow the record of an alert: what was worst, and what was last seen when."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet.alerts import acknowledge, reconcile
from fleet.alerts.handover import as_markdown, shift_between
from fleet.alerts.text import AlertText, facts, plain
from fleet.costs.losses import update_alert_costs
from fleet.models import Alert, Run
from fleet.notifications.messages import item_of
from telemetry.detect import RULES, Finding
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, steps

RULES_SEEN = [
    *((rule, "run:llama") for rule in ("allreduce_share", "hang", "step_slow")),
    *((rule, "node:limping") for rule in ("efa_degraded", "hbm_slow")),
]
Evaluate = Callable[..., list[Alert]]
LATER = NOON + timedelta(hours=1)
LINK: dict[str, Any] = {
    "kind": "transferring",
    "wait_ratio": 0.04,
    "limit_ratio": 0.25,
    "baseline_step_s": 8.9,
    "culprit": {"metric": "efa_retransmits_per_s", "value": 800.0, "peers_median": 0.0},
}


@pytest.fixture
def evaluate(db: None) -> Evaluate:
    """Reconcile what may be found of the run, some seconds after noon."""

    def at(second: float, *findings: Finding) -> list[Alert]:
        return reconcile(findings, evaluated=RULES_SEEN, now=NOON + timedelta(seconds=second))

    return at


def share(finding: Finding, ratio: float, step_s: float, **more: Any) -> Finding:
    measured = {"share_ratio": ratio, "transfer_ratio": ratio, "step_s": step_s}
    evidence = {**LINK, **measured, **more}
    return replace(finding, cause="efa_loss", device=3, score=ratio / 0.25, evidence=evidence)


def link(finding: Finding) -> Finding:
    """Return the last finding of a link that hardly slows the run any more."""
    evidence = {**LINK, "transfer_ratio": 0.1, "step_s": 8.9}
    return replace(
        finding, rule="efa_degraded", cause="efa_loss", device=3, score=1.1, evidence=evidence
    )


def everywhere(alert: Alert) -> dict[str, str]:
    """Return what the pages and messages say an hour after the end."""
    alert.refresh_from_db()
    text = AlertText(alert, LATER)
    shift = shift_between(NOON - timedelta(hours=1), now=LATER)
    item = item_of(alert, None, base_url="https://x", now=LATER)
    told = {
        "list": plain(text.headline),
        "page": plain(text.story),
        "hand-over": as_markdown(shift, [], root=""),
        "message": f"{item.summary} {item.story}",
    }
    return {name: each.replace("\u202f", " ").replace("\xa0", " ") for name, each in told.items()}


def test_what_was_worst_is_described_after_the_last_finding_was_small(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, share(finding, 0.31, 9.5))
    evaluate(60, share(finding, 0.573, 16.8))
    evaluate(400, link(finding))
    evaluate(480, link(finding))
    evaluate(540)

    alert = Alert.objects.get()
    assert alert.state == "resolved"
    for where, text in everywhere(alert).items():
        assert "57.3 %" in text, where
        assert "unchanged" not in text, where
        assert "packet loss on device" not in text, where
    page = everywhere(alert)["page"]
    assert "took 16.8 s instead of 8.90 s" in page
    assert "EFA" in page
    assert ("Step", "16.8 s, was 8.90 s") in [
        (name, value.replace("\u202f", " ")) for name, value in facts(alert)
    ]
    assert (alert.first["figures"]["share_ratio"], alert.first["at_s"]) == (0.31, NOON_S)
    assert (alert.worst["figures"]["share_ratio"], alert.worst["at_s"]) == (0.573, NOON_S + 60)
    assert (alert.latest["rule"], alert.latest["at_s"]) == ("efa_degraded", NOON_S + 480)


def test_what_is_current_says_of_when_it_is(evaluate: Evaluate, finding: Finding) -> None:
    evaluate(0, share(finding, 0.573, 16.8))
    evaluate(30, share(finding, 0.301, 9.5))

    text = AlertText(Alert.objects.get(), NOON + timedelta(seconds=31))
    page = plain(text.story).replace("\u202f", " ")
    assert "57.3 % of each step in gradient all-reduce at worst, 30.1 % at 2026-" in page
    assert "12:00:30 UTC" in page
    assert "takes up to 16.8 s instead of 8.90 s; 9.50 s at" in page
    assert "up to 57.3 %" in plain(text.headline).replace("\u202f", " ")


@pytest.mark.parametrize(
    ("now", "scatter", "is_told"),
    [
        # Within the run's own scatter: the highest of many means is no news.
        (0.452, 0.008, False),
        (0.452, 0.002, True),
        # The same figure, as it is written.
        (0.4607, 0.0, False),
        (0.301, 0.008, True),
    ],
)
def test_the_worst_is_told_apart_only_where_it_differs_by_more_than_the_run_scatters(
    evaluate: Evaluate,
    finding: Finding,
    now: float,
    scatter: float,
    is_told: bool,  # noqa: FBT001
) -> None:
    scatters = {"share_scatter_ratio": scatter, "step_scatter_s": 9.5 * scatter}
    evaluate(0, share(finding, 0.461, 9.5, **scatters))
    evaluate(30, share(finding, now, 9.5 * now / 0.461, **scatters))

    text = AlertText(Alert.objects.get(), NOON + timedelta(seconds=31))
    page = plain(text.story)
    assert ("at worst" in page) == is_told
    assert ("up to" in plain(text.headline)) == is_told
    assert "46.1" in page


def test_an_open_alert_that_eased_says_how_it_was_at_worst(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, share(finding, 0.573, 16.8))
    evaluate(400, link(finding))

    text = AlertText(Alert.objects.get(), NOON + timedelta(seconds=401))
    assert "packet loss on device 3" in text.headline
    assert "At worst, at 2026-" in plain(text.story)
    assert "57.3" in plain(text.story)


def test_a_link_that_slows_nothing_any_more_is_not_said_to_slow_its_run(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, share(finding, 0.573, 16.8))
    evaluate(400, link(finding))

    text = AlertText(Alert.objects.get(), NOON + timedelta(seconds=401))
    page = plain(text.story)
    assert "It slows" not in page + plain(text.detail)
    assert "Run: llama" in page
    # It was changed, as the next sentence says.
    assert "unchanged" not in page
    assert "as long as before again" in page


def test_each_rule_of_an_open_alert_is_described_by_its_own_worst(
    evaluate: Evaluate, finding: Finding
) -> None:
    slow = {"step_s": 21.4, "baseline_step_s": 8.9, "kind": "waiting"}
    evaluate(0, replace(share(finding, 0.5, 21.4), rule="step_slow", evidence=slow))
    evaluate(310, share(finding, 0.474, 12.0))
    evaluate(330, share(finding, 0.301, 9.9))
    evaluate(340, share(finding, 0.245, 9.0))

    alert = Alert.objects.get()
    text = AlertText(alert, NOON + timedelta(seconds=341))
    page = plain(text.story).replace("\u202f", " ")
    assert alert.worst["rule"] == "step_slow"
    assert "up to 47.4 %" in plain(text.headline).replace("\u202f", " ")
    assert "47.4 % of each step in gradient all-reduce at worst, 24.5 % at 2026-" in page
    assert "up to 12.0 s instead of 8.90 s; 9.00 s at" in page
    assert "At worst, at 2026-" in page
    assert "took 21.4 s per step" in page
    evaluate(350)
    assert "took 21.4 s per step" in everywhere(alert)["list"]


def test_of_two_rules_under_which_steps_took_as_long_that_of_the_alert_describes_it(
    evaluate: Evaluate, finding: Finding
) -> None:
    memory = {"step_s": 12.1, "baseline_step_s": 8.9}
    slow = replace(share(finding, 0.37, 12.1), cause="hbm_slow")
    evaluate(0, replace(slow, rule="hbm_slow", evidence=memory))
    evaluate(20, slow)
    evaluate(30, replace(slow, evidence={**slow.evidence, "share_ratio": 0.372, "step_s": 12.0}))
    evaluate(40, replace(slow, rule="hbm_slow", evidence=memory))
    evaluate(50)

    alert = Alert.objects.get()
    assert (alert.rule, alert.state) == ("allreduce_share", "resolved")
    for where, text in everywhere(alert).items():
        assert "37.2 %" in text, where


def test_a_run_that_hung_for_a_while_and_was_slow_is_not_said_to_have_hung_all_the_time(
    evaluate: Evaluate, finding: Finding
) -> None:
    hung = replace(finding, rule="hang", cause="unknown", node=None, device=None, evidence={})
    slow = replace(hung, rule="step_slow", evidence={"step_s": 80.0, "baseline_step_s": 8.0})
    for second in range(0, 60, 10):
        evaluate(second, hung)
    for second in range(60, 420, 10):
        evaluate(second, slow)
    now = NOON + timedelta(seconds=419)
    assert "no step for" not in plain(AlertText(Alert.objects.get(), now).story).partition("At")[0]
    evaluate(420)

    told = everywhere(Alert.objects.get())
    assert "finished no step for 1 min" in told["page"]
    assert "no step for 7 min" not in told["page"]


def test_a_cause_that_was_found_after_the_peak_is_described_with_the_peak(
    evaluate: Evaluate, finding: Finding
) -> None:
    unknown = share(finding, 0.573, 16.8, culprit=None)
    evaluate(0, replace(unknown, cause="unknown", node=None, device=None))
    evaluate(60, share(finding, 0.4, 12.0))
    evaluate(120)

    page = everywhere(Alert.objects.get())["page"]
    assert "57.3 %" in page
    assert "EFA retransmits on" in page
    assert "800" in page


def test_it_recovers_before_it_is_resolved(evaluate: Evaluate, finding: Finding) -> None:
    evaluate(0, share(finding, 0.4, 12.0))
    acknowledge(Alert.objects.get(), by="ada", comment="", now=NOON)
    evaluate(30, share(finding, 0.4, 12.0, healthy_steps=3, steps_to_resolve=5))

    alert = Alert.objects.get()
    assert (alert.state, alert.recovery) == ("recovering", (3, 5))
    assert list(Alert.objects.all().in_state("recovering", now=NOON)) == [alert]
    assert "recovering: 3 of 5 healthy steps at" in plain(AlertText(alert, NOON).story)
    evaluate(31, share(finding, 0.4, 12.0))
    alert.refresh_from_db()
    assert alert.state == "acknowledged"
    evaluate(40)
    alert.refresh_from_db()
    assert alert.state == "resolved"


def test_a_loss_never_falls(hot: HotStore, run: Run) -> None:
    hot.append_steps(steps(n_steps=100, ended_at_s=NOON_S - 200, compute_s=2.0))
    alert = Alert.objects.create(
        rule="hang",
        cause="hang",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=run,
        score=1.0,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
    )
    update_alert_costs(hot, now=NOON + timedelta(seconds=300))
    alert.refresh_from_db()
    lost = alert.cost
    # What seemed lost was a planned checkpoint, as the step says at its end.
    last = steps(n_steps=1, first=101, ended_at_s=NOON_S + 302, compute_s=2.0)
    last.phases["checkpoint_s"][:] = 290.0
    hot.append_steps(last)
    alert.resolved_at = NOON + timedelta(seconds=303)
    alert.save()
    update_alert_costs(hot, now=alert.resolved_at)

    alert.refresh_from_db()
    assert lost["lost_s"] > 290
    assert alert.cost["lost_s"] == lost["lost_s"]
    assert alert.cost["usd"] == lost["usd"]


@pytest.mark.parametrize(
    ("rule", "evidence", "merit"),
    [
        ("allreduce_share", {"share_ratio": 0.57}, 0.57),
        ("step_slow", {"step_s": 16.8, "baseline_step_s": 8.4}, 2.0),
        ("checkpoint_slow", {"phase_s": 90.0, "baseline_phase_s": 30.0}, 3.0),
        ("hang", {}, 42.0),
        ("ecc_uncorrected", {}, 0.0),
        ("step_slow", {"step_s": 16.8, "baseline_step_s": None}, 0.0),
    ],
)
def test_each_rule_has_a_figure_by_which_the_worst_is_found(
    rule: str, evidence: dict[str, Any], merit: float
) -> None:
    assert RULES[rule].merit_of(evidence, lasted_s=42.0) == merit
