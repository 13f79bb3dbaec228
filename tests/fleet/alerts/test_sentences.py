"""Alert sentences follow from the evidence."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.template.loader import get_template
from django.utils.html import strip_tags

from fleet.alerts.causes import CAUSES
from fleet.alerts.events import summary
from fleet.alerts.evidence import Evidence
from fleet.alerts.text import AlertText, facts, headline, plain
from fleet.formatting import written
from fleet.models import Alert, Node, Run
from telemetry.detect import RULES, Finding
from telemetry.simulate.faults import FAULTS
from tests.helpers import NOON, NOON_S

SINCE = written(NOON)
NOW = NOON + timedelta(minutes=3)
LINK = {
    "share_ratio": 0.314,
    "wait_ratio": 0.042,
    "transfer_ratio": 0.272,
    "limit_ratio": 0.25,
    "kind": "transferring",
    "step_s": 8.4,
    "baseline_step_s": 6.3,
    "culprit": {"value": 142e-6, "peers_median": 17e-6, "n_peers": 191, "unit": "s"},
}
COST = {
    "lost_s": 180.0,
    "n_steps": 7.2,
    "usd": 1.07,
    "usual_s": 6.3,
    "n_before": 100,
    "n_done": 20,
    "span_s": 180.0,
    "paused_s": 0.0,
    "n_nodes": 4,
    "usd_per_hour": 86.0,
}
CORE = LINK | {
    "wait_ratio": 0.272,
    "transfer_ratio": 0.042,
    "kind": "waiting",
    "culprit": {"value": 7.9, "peers_median": 5.4, "n_peers": 3, "unit": "s"},
}
Make = Callable[..., Alert]


@pytest.fixture
def make(run: Run, limping: Node) -> Make:
    def make(evidence: Mapping[str, Any], **fields: Any) -> Alert:
        usual: dict[str, Any] = {
            "rule": "allreduce_share",
            "cause": "efa_latency",
            "severity": Alert.Severity.PAGE,
            "subject": "run:llama",
            "run": run,
            "node": limping,
            "device": 2,
            "score": 1.2,
            "victims": ["steady", "silent", "hot"],
            "onset_at": NOON,
            "fired_at": NOON,
            "last_seen_at": NOON,
            "cost": COST,
        }
        return Alert(evidence=dict(evidence), **usual | fields)

    return make


def paragraph_of(alert: Alert, *, after: timedelta = timedelta(minutes=3)) -> str:
    text = strip_tags(AlertText(alert, NOON + after).story)
    return text.replace("\u202f", " ").replace("\u00a0", " ").strip()


def test_a_slow_link_moves_the_bytes_slowly_and_no_one_is_late(make: Make) -> None:
    assert paragraph_of(make(LINK)) == (
        f"llama spends 31.4 % of each step in gradient all-reduce (limit 25 %) since {SINCE}. "
        "Likely cause: EFA latency on device 2 of limping, 142 µs vs 17.0 µs on its "
        "peers. All 4 nodes arrive at the collective together; the transfer itself is slow. "
        "Each step takes 8.40 s instead of 6.30 s. $1.07 and 7 steps lost so far."
    )


def test_a_slow_core_makes_all_others_wait(make: Make) -> None:
    text = paragraph_of(make(CORE, cause="slow_core", device=17))

    assert "core 17 of limping is slower than its peers" in text
    assert "3 other nodes are waiting on limping." in text
    assert "arrive at the collective together" not in text


def test_one_peer_is_not_many(make: Make) -> None:
    alert = make(CORE, cause="slow_core", device=17, victims=["steady"])
    assert "its peer is waiting on limping" in paragraph_of(alert)


def test_a_cause_that_is_not_known_is_called_unknown(make: Make) -> None:
    text = paragraph_of(make(LINK | {"culprit": None}, cause="unknown", node=None, device=None))

    assert "The cause is unknown: no worker, link or memory stands out" in text
    assert "likely" not in text


def test_nothing_is_said_to_stand_out_or_not_where_nothing_tells_workers_apart(make: Make) -> None:
    whole = {"kind": "step", "wait_ratio": None, "transfer_ratio": None, "culprit": None}
    unplaced = {"rule": "step_slow", "cause": "unknown", "node": None, "device": None}
    text = paragraph_of(make(LINK | whole, **unplaced))

    assert "unknown: the gradient exchange is not timed, so all workers take the same" in text
    assert "stands out" not in text
    traced = LINK | whole | {"wait_ratio": 0.02, "transfer_ratio": 0.0}
    assert "no worker, link or memory stands out" in paragraph_of(make(traced, **unplaced))


def test_a_layout_that_communicates_much_is_not_called_broken(make: Make) -> None:
    evidence = LINK | {"kind": "communication-bound layout", "baseline_step_s": None}
    text = paragraph_of(make(evidence, cause="unknown", node=None, device=None, cost={}))

    assert "Nothing is broken" in text
    assert "lost" not in text


def test_what_is_over_is_reported_as_past(make: Make) -> None:
    text = paragraph_of(make(LINK, resolved_at=NOON + timedelta(minutes=2)))

    assert "llama spent 31.4 %" in text
    assert f"for 2 min from {SINCE}." in text
    assert "took 8.40 s" in text
    assert text.endswith("lost.")


def test_without_a_measure_no_price_is_made_up(make: Make) -> None:
    text = paragraph_of(make(LINK | {"baseline_step_s": None}, cost={}))

    assert "$" not in text
    assert "instead of" not in text


@pytest.mark.parametrize(
    ("trains_on", "verdict"),
    [(1, "probably the agent has failed, not the node"), (0, "the node itself may be down")],
)
def test_a_silent_node_is_unreported_or_down_by_whether_its_run_continues(
    make: Make, trains_on: int, verdict: str
) -> None:
    alert = make({"steps_go_on": bool(trains_on)}, rule="node_silent", cause="node_silent")

    assert "limping has not reported for 3 min" in paragraph_of(alert)
    assert verdict in paragraph_of(alert)


def test_a_silent_node_states_no_more_than_is_known(make: Make) -> None:
    assert paragraph_of(make({}, rule="node_silent", cause="node_silent", run=None, cost={})) == (
        "limping has not reported for 3 min."
    )


def test_memory_errors_are_counted(make: Make) -> None:
    text = paragraph_of(make({"n_errors": 1}, rule="ecc_uncorrected", cause="ecc_uncorrected"))

    assert text.startswith(f"Uncorrected ECC errors on device 2 of limping since {SINCE}")
    assert "1 error within ten minutes" in text
    assert "plan to replace the node" in text


def test_memory_errors_of_a_machine_that_was_replaced_are_over(make: Make) -> None:
    over = {"resolved_at": NOON + timedelta(minutes=3)}
    alert = make({"n_errors": 18.0}, rule="ecc_uncorrected", cause="ecc_uncorrected", **over)

    assert "18 errors within ten minutes" in paragraph_of(alert)
    assert "in that time may be wrong." in paragraph_of(alert)
    assert "plan to replace" not in paragraph_of(alert)
    assert ("Errors", "18") in facts(alert)


def test_a_rule_that_states_its_cause_seeks_none(make: Make) -> None:
    rule = {"rule": "preflight", "cause": "unknown", "node": None, "device": None}
    alert = make({"doubt": "None passed."}, **rule)

    assert AlertText(alert, NOON).cause == ""
    assert "Cause" not in dict(facts(alert))
    started = Finding("preflight", "unknown", "warn", run="llama", onset_s=0.0, score=1.0)
    assert summary(started) == "started without a preflight"


def test_an_unhealthy_device_is_named_unless_there_are_several(make: Make) -> None:
    rule = {"rule": "device_unhealthy", "cause": "device_unhealthy"}
    one, several = make({"devices": [2]}, **rule), make({"devices": [2, 5]}, **rule, device=None)

    assert "Device 2 of limping is unhealthy" in headline(one)
    assert f"rejects device 2 of limping since {SINCE}" in paragraph_of(one)
    assert "Devices of limping are unhealthy" in headline(several)
    assert "rejects 2 devices of limping" in paragraph_of(several)


def test_missing_devices_are_counted_and_named(make: Make) -> None:
    rule = {"rule": "device_missing", "cause": "device_missing"}
    figures = {"n_reporting": 15, "n_devices": 16, "devices": [2]}
    one = make(figures, **rule)
    several = make(figures | {"n_reporting": 14, "devices": [2, 5]}, **rule, device=None)

    assert headline(one) == "15 of 16 accelerators of limping report: device 2 is missing"
    assert headline(several).endswith("limping report: devices 2, 5 are missing")
    assert "llama needs another node" in paragraph_of(one)
    assert "another node" not in paragraph_of(make(figures, **rule, run=None))
    assert {name for name, _ in facts(one)} >= {"Reporting", "Devices"}
    assert f"report since {SINCE}: device 2 is missing" in paragraph_of(one)
    assert "devices 2, 5 are missing" in paragraph_of(several)


def test_a_loss_of_nan_is_told_with_its_step_and_the_last_checkpoint(make: Make) -> None:
    rule = {"rule": "loss_not_finite", "cause": "loss_not_finite", "node": None, "device": None}
    figures = {"value": "NaN", "since_step": 4211, "last_loss": 2.25, "last_loss_step": 4210}
    saved = make(figures | {"checkpoint_step": 4000}, **rule)
    unsaved = make(figures | {"checkpoint_step": None}, **rule)

    assert headline(saved) == "The loss of llama is NaN since step 4,211"
    told = "is NaN since step 4,211; last checkpoint before it: 4,000. At step 4,210 it was 2.25."
    assert told in paragraph_of(saved)
    assert "no checkpoint before it is known." in paragraph_of(unsaved)


def test_a_spike_is_told_with_what_was_usual(make: Make) -> None:
    rule = {"rule": "loss_spike", "cause": "loss_spike", "node": None, "device": None}
    figures = {"since_step": 4211, "loss": 97.0, "baseline_loss": 3.0, "limit_loss": 0.25}
    spike = make(figures, **rule)

    assert headline(spike) == "The loss of llama rose to 97.0"
    assert "before, it was 3.00" in paragraph_of(spike)
    assert "Noise explains a rise of up to 0.250" in paragraph_of(spike)


def test_workers_that_stopped_at_once_are_no_hang(make: Make) -> None:
    at_once = make({}, rule="hang", cause="workers_ended", node=None, device=None)

    assert "stopped at once: job suspended or ended?" in headline(at_once)
    assert "Workers that hang go on sending heartbeats; none does" in paragraph_of(at_once)
    assert "hangs" not in headline(at_once)
    # Once is enough.
    assert paragraph_of(at_once).count("suspended") == 1


def test_a_run_whose_reports_are_refused_is_neither_stopped_nor_hanging(make: Make) -> None:
    rule = {"rule": "hang", "cause": "reports_refused", "node": None, "device": None}
    refused = make({"refused": "9 reports refused within a minute: step_s: is text"}, **rule)

    assert headline(refused) == "Reports of llama are refused: no step is known"
    assert "step_s: is text" in AlertText(refused, NOW).detail
    for word in ("stopped", "hangs", "suspended", "heartbeats"):
        assert word not in paragraph_of(refused)


def test_a_node_whose_reports_are_refused_has_not_stopped_reporting(make: Make) -> None:
    rule = {"rule": "node_silent", "cause": "reports_refused"}
    refused = make({"refused": "9 reports refused within a minute: host: is text"}, **rule)

    assert headline(refused) == "Reports of limping are refused"
    assert "host: is text" in AlertText(refused, NOW).detail
    assert "agent" not in paragraph_of(refused)


def test_missing_workers_are_counted_and_named_by_rank(make: Make) -> None:
    rule = {"rule": "workers_missing", "cause": "workers_missing", "node": None, "device": None}
    one = make({"n_missing": 1, "n_workers": 4, "missing_ranks": [3]}, **rule)
    two = make({"n_missing": 2, "n_workers": 4, "missing_ranks": []}, **rule)

    assert "1 of 4 workers of llama has not arrived: rank 3" in headline(one)
    assert headline(two).endswith("2 of 4 workers of llama have not arrived")
    assert "Without it no step begins" in paragraph_of(one)


def test_a_checkpoint_names_who_says_that_it_is_written(make: Make) -> None:
    rule = {"rule": "checkpoint_slow", "cause": "checkpoint_slow", "node": None, "device": None}
    figures = {"phase_s": 640.0, "baseline_phase_s": None, "kind": "checkpoint"}
    said = paragraph_of(make(figures | {"said_by": ["limping", "calm"]}, **rule))

    assert "The workers of limping, calm say that they write a checkpoint" in said
    assert "how long one usually takes is unknown" in said
    assert "say that they" not in paragraph_of(make(figures | {"said_by": []}, **rule))


def test_a_checkpoint_without_an_earlier_one_is_compared_with_what_is_expected(make: Make) -> None:
    rule = {"rule": "checkpoint_slow", "cause": "checkpoint_slow", "node": None, "device": None}
    figure = {"metric": "checkpoint_s", "value": 92.0, "peers_median": 14.0, "n_peers": 0}
    figures = {"kind": "checkpoint", "phase_s": 92.0, "baseline_phase_s": 14.0}
    figures |= {"culprit": figure | {"unit": "s"}}
    measured, expected = make(figures, **rule), make(figures | {"is_expected": True}, **rule)

    assert "vs 14.0 s before" in paragraph_of(measured)
    assert "vs 14.0 s expected for its size" in paragraph_of(expected)
    assert "before" not in paragraph_of(expected)
    names = dict(facts(expected))
    assert "Before" not in names
    assert names["Phase"].replace("\u202f", " ") == "checkpoint 92.0 s, expected 14.0 s"


@pytest.mark.parametrize(
    ("rule", "figures"),
    [
        ("budget_overrun", {"budget": "LLM", "used_up_s": NOON_S + 9e5}),
        ("preflight", {"started_s": float(NOON_S)}),
    ],
)
def test_a_time_names_its_zone_once(make: Make, rule: str, figures: dict[str, Any]) -> None:
    alert = make(figures, rule=rule, cause="unknown", node=None, device=None)

    story = plain(AlertText(alert, NOW).story)
    assert story.count(" UTC") == 1
    assert "UTC" not in paragraph_of(alert)


def test_blindness_is_the_monitoring_s_own(make: Make) -> None:
    alert = make({}, rule="monitoring_blind", cause="unknown", run=None, node=None)

    assert "Monitoring is blind: no node has reported for 3 min" in paragraph_of(alert)


@pytest.mark.parametrize("rule", [*RULES, "a_new_rule"])
def test_every_rule_has_a_headline_and_a_paragraph(make: Make, rule: str) -> None:
    alert = make({}, rule=rule)

    assert headline(alert)
    assert paragraph_of(alert)


@pytest.mark.parametrize("cause", [*FAULTS, "something_new"])
def test_every_cause_has_text_with_and_without_a_culprit(make: Make, cause: str) -> None:
    for fields in ({}, {"device": None}, {"device": None, "node": None}):
        text = paragraph_of(make(LINK, cause=cause, **fields)) + strip_tags(
            AlertText(make(LINK, cause=cause), NOON).detail
        )

        assert "None" not in text
        assert "{" not in text


def test_every_cause_of_the_simulator_has_a_sentence() -> None:
    assert set(FAULTS) - set(CAUSES) == set(), "fleet/alerts/causes.py: add a row to CAUSES"


@pytest.mark.parametrize("cause", CAUSES)
def test_every_named_cause_has_a_template(cause: str) -> None:
    assert get_template(f"alerts/_causes.html#{cause}")


def test_names_are_text_and_never_markup(make: Make, limping: Node) -> None:
    limping.name = "<img>"

    assert "<img>" not in AlertText(make(LINK, cause="<script>"), NOON).story


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), True, "6.3", None, [1]])
def test_what_is_no_number_is_nothing(odd: object) -> None:
    assert Evidence({"step_s": odd}).number("step_s") is None


@pytest.mark.parametrize(
    ("rule", "cause", "shown"),
    [
        ("core_slow", "slow_core", "Core 2 of limping computes slowly: 142 µs vs 17.0 µs"),
        ("core_slow", "throttle", "Device 2 of limping is throttled"),
        ("hbm_slow", "hbm_slow", "Device 2 of limping has slow HBM"),
        ("efa_degraded", "efa_loss", "EFA packet loss on device 2 of limping"),
        ("efa_degraded", "efa_down", "EFA device 2 of limping is down"),
    ],
)
def test_a_part_of_a_node_is_reported_once_with_its_figure_and_its_victims(
    make: Make, rule: str, cause: str, shown: str
) -> None:
    text = paragraph_of(make(LINK, rule=rule, cause=cause, subject="node:limping"))

    assert shown in text
    assert "It slows llama." in text
    assert "likely cause" not in text


def test_a_recompile_no_one_announced_states_it(make: Make) -> None:
    alert = make({}, rule="recompile", cause="recompile", node=None, device=None)

    assert "llama has stopped for an unplanned recompilation since" in paragraph_of(alert)
    assert AlertText(alert, NOON).detail == ""


def test_a_hang_states_since_when_no_step_has_ended(make: Make) -> None:
    text = paragraph_of(make({}, rule="hang", cause="hang"))

    assert f"llama has finished no step for 3 min, since {SINCE}." in text
    assert "Likely cause: limping has not joined the collective" in text


def test_what_is_its_own_cause_is_reported_once_with_its_figure(make: Make) -> None:
    culprit = {"value": 10.3, "peers_median": 3.1, "n_peers": 0, "unit": "s"}
    alert = make(
        {"culprit": culprit},
        rule="checkpoint_slow",
        cause="checkpoint_slow",
        node=None,
        device=None,
    )

    assert (
        f"llama writes checkpoints slowly: 10.3 s vs 3.10 s before, since {SINCE}."
        in paragraph_of(alert)
    )
    assert "likely" not in paragraph_of(alert)


def test_idle_nodes_are_listed_with_the_change_of_scale_that_left_them(make: Make) -> None:
    evidence = {
        "nodes": ["llama-02", "llama-03"],
        "scaled_down": {"at_s": NOON.timestamp() - 600, "n_before": 4, "n_after": 2},
    }
    fields = {"rule": "node_idle", "cause": "node_idle", "node": None, "device": None}
    alert = make(evidence, cost={}, **fields)
    shown = "The run was scaled down from 4 to 2 nodes at"
    short = strip_tags(f"{headline(alert)}. {AlertText(alert, NOON).detail}").replace(
        "\u202f", " "
    )
    for text in (paragraph_of(alert), short.replace("\u00a0", " ")):
        assert "2 nodes of llama" in text
        assert shown in text
        assert "Idle: llama-02, llama-03." in text


def test_the_most_probable_cause_is_stated_where_none_is_named(make: Make) -> None:
    weighed = {"posterior": {"unknown": 0.24, "hbm_slow": 0.75, "throttle": 0.01}}
    unplaced = {"cause": "unknown", "node": None, "device": None}

    def text(posterior: Mapping[str, Any], **place: Any) -> str:
        return paragraph_of(make({**CORE, **posterior}, **{"cause": "unknown", **place}))

    assert "unknown. Most probable is slow HBM, 75 %." in text(weighed, device=None)
    assert "Why limping is slow is unknown." in text(weighed, device=None)
    assert "Most probable is slow HBM, 75 %." in text(weighed, **unplaced)
    # Of an older alert, or where nothing fits.
    nothings: list[Mapping[str, Any]] = [{}, {"posterior": {"unknown": 0.9, "hbm_slow": 0.1}}]
    for nothing in nothings:
        assert "Most probable" not in text(nothing, **unplaced)


def test_nothing_is_said_of_a_transfer_that_takes_longer_than_the_wait(make: Make) -> None:
    late = make(CORE, cause="slow_compute")
    assert "The transfer is as fast as before: all 3 other nodes are waiting on limping" in (
        paragraph_of(late)
    )

    over = make(CORE, cause="slow_compute", resolved_at=NOON + timedelta(minutes=3))
    assert "was as fast as before: all 3 other nodes were waiting on limping" in paragraph_of(over)

    both = make(CORE | {"transfer_ratio": 0.274, "wait_ratio": 0.221}, cause="slow_compute")
    text = paragraph_of(both)
    assert "as fast as before" not in text
    assert "peers. All 3 other nodes are waiting on limping." in text
