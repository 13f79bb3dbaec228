"""A node that stops reporting is an alert of its own; a fleet that does is our own blindness."""

import json

import pytest

from telemetry.detect import StepHeartbeat, find_silent
from telemetry.detect.stopped import are_all_overdue

NOW = 1_000
FLEET = {"steady": 999, "limping": 1_000, "calm": 1_000}


def test_a_fleet_that_reports_is_not_silent() -> None:
    assert find_silent(FLEET, now_s=NOW) == []
    assert find_silent({}, now_s=NOW) == []


def test_fifteen_seconds_are_silence_and_fourteen_are_not() -> None:
    assert find_silent(FLEET | {"quiet": NOW - 14}, now_s=NOW) == []
    assert find_silent(FLEET | {"quiet": NOW - 15}, now_s=NOW) != []
    assert find_silent(FLEET | {"quiet": NOW - 8}, now_s=NOW, after_s=5) != []


def test_an_agent_that_was_asked_to_end_is_missed_later() -> None:
    for quiet_s, n_found in ((39, 0), (40, 1)):
        seen = FLEET | {"quiet": NOW - quiet_s}
        assert len(find_silent(seen, now_s=NOW, may_be_quiet_s={"quiet": 40})) == n_found


@pytest.mark.parametrize(("every_s", "limit_s"), [(1, 15), (3, 15), (5, 19), (15, 53), (0, 53)])
def test_a_silent_node_has_missed_three_reports_and_waits_for_the_next(
    every_s: int, limit_s: int
) -> None:
    def found(quiet_s: int) -> list[str | None]:
        seen = FLEET | {"quiet": NOW - quiet_s}
        runs, every = dict.fromkeys(seen, "llama"), {"llama": every_s}
        silent = find_silent(seen, now_s=NOW, run_of=runs, report_every_s=every)
        return [finding.node for finding in silent]

    assert found(limit_s - 1) == []
    assert found(limit_s) == ["quiet"]


def test_nodes_that_fell_silent_together_are_not_named_one_by_one() -> None:
    """Their limits differ; a moment later all of them are silent, which is one alert."""
    seen = dict.fromkeys(FLEET, NOW - 15) | {"scraped": NOW - 14}

    assert find_silent(seen, now_s=NOW) == []
    (finding,) = find_silent(seen, now_s=NOW + 1)
    assert finding.rule == "monitoring_blind"
    # The others were heard long enough after those two.
    silent = find_silent(seen | {"scraped": NOW - 9, "calm": NOW - 9}, now_s=NOW)
    assert {each.node for each in silent} == {"limping", "steady"}


def test_after_a_silence_of_all_nodes_only_those_silent_before_are_silent() -> None:
    seen = FLEET | {"late": NOW - 123, "dead": NOW - 300}

    silent = find_silent(seen, now_s=NOW, returning_from_s=NOW - 120)
    assert [each.node for each in silent] == ["dead"]
    assert len(find_silent(seen, now_s=NOW)) == 2
    # Who was heard after it has fallen silent since.
    assert len(find_silent(seen, now_s=NOW, returning_from_s=NOW - 50)) == 2
    # If all are silent again, that is one alert as before.
    (finding,) = find_silent(seen, now_s=NOW + 60, returning_from_s=NOW - 120)
    assert finding.rule == "monitoring_blind"


def test_all_are_overdue_if_none_reports_as_often_as_it_does() -> None:
    def are_overdue(seen: dict[str, int], every_s: int) -> bool:
        runs = dict.fromkeys(seen, "llama")
        return are_all_overdue(seen, now_s=NOW, run_of=runs, report_every_s={"llama": every_s})

    seen = {"first": NOW - 7, "second": NOW - 90}
    assert are_overdue(seen, 1)
    assert not are_overdue(seen, 2)
    assert not are_overdue({"first": NOW - 20, "second": NOW - 20}, 0)
    assert not are_overdue({}, 1)


def test_a_quiet_node_is_named_since_it_was_last_heard() -> None:
    (finding,) = find_silent(FLEET | {"quiet": 950}, now_s=NOW)
    assert (finding.rule, finding.cause, finding.node) == ("node_silent", "node_silent", "quiet")
    assert finding.onset_s == 950
    assert finding.score == pytest.approx(50 / 15)
    assert json.loads(json.dumps(dict(finding.evidence)))["quiet_s"] == 50


def test_a_run_that_trains_on_has_lost_only_its_telemetry() -> None:
    (finding,) = find_silent(
        FLEET | {"quiet": 900},
        now_s=NOW,
        run_of={"quiet": "llama", "calm": "llama"},
        pulses={"llama": StepHeartbeat(last_step_at_s=998, step_s=3)},
    )
    assert finding.cause == "node_silent"
    assert finding.run == "llama"
    assert finding.evidence["steps_go_on"] is True


@pytest.mark.parametrize(("last_step_at_s", "limit_s"), [(998, 30), (985, 15)])
def test_a_node_that_still_works_is_missed_later(last_step_at_s: int, limit_s: int) -> None:
    """An agent that crashed and comes back pages no one while steps that need its node end."""

    def found(quiet_s: int, *, known: tuple[str, ...] = ()) -> list[str | None]:
        seen_s = NOW - quiet_s
        pulse = StepHeartbeat(max(last_step_at_s - 1_000 + NOW, seen_s - 3), step_s=3)
        silent = find_silent(
            FLEET | {"quiet": seen_s},
            now_s=NOW,
            run_of={"quiet": "llama", "calm": "llama"},
            pulses={"llama": pulse},
            known=known,
        )
        return [finding.node for finding in silent]

    assert found(limit_s - 1) == []
    assert found(limit_s) == ["quiet"]
    # What is known does not end because a step does.
    assert found(15, known=("quiet",)) == ["quiet"]


@pytest.mark.parametrize("after_s", [2.0, 4.0])
@pytest.mark.parametrize("crashed", [(), ("quiet",)])
def test_a_node_whose_worker_is_heard_works(crashed: tuple[str, ...], after_s: float) -> None:
    """Within one long step: its agent is missing, for which no one gets up."""

    def found(quiet_s: int) -> list[tuple[str, str]]:
        seen_s = NOW - quiet_s
        silent = find_silent(
            FLEET | {"quiet": seen_s},
            now_s=NOW,
            run_of={"quiet": "llama", "calm": "llama"},
            pulses={"llama": StepHeartbeat(seen_s - 5, step_s=90)},
            crashed=crashed,
            heard_s={"quiet": seen_s + after_s},
        )
        return [(finding.cause, finding.severity) for finding in silent]

    is_dead = after_s == 2.0
    assert found(29) == ([("node_crash" if crashed else "node_silent", "page")] if is_dead else [])
    cause = "node_crash" if is_dead and crashed else "node_silent"
    assert found(30) == [(cause, "page" if is_dead else "warn")]


def test_a_run_that_stopped_with_the_node_has_lost_the_node() -> None:
    (finding,) = find_silent(
        FLEET | {"quiet": 900},
        now_s=NOW,
        run_of={"quiet": "llama"},
        pulses={"llama": StepHeartbeat(last_step_at_s=899, step_s=3)},
    )
    assert finding.cause == "node_crash"
    assert finding.evidence["since_last_step_s"] == 101


def test_a_long_step_under_way_is_no_evidence_of_death() -> None:
    (finding,) = find_silent(
        FLEET | {"quiet": 950},
        now_s=NOW,
        run_of={"quiet": "llama"},
        pulses={"llama": StepHeartbeat(last_step_at_s=975, step_s=20)},
    )
    assert finding.cause == "node_silent"


def test_several_nodes_of_a_run_know_of_each_other() -> None:
    runs = {"a": "llama", "b": "llama", "c": "bert", "calm": "llama"}
    found = find_silent(FLEET | {"a": 900, "b": 901, "c": 902}, now_s=NOW, run_of=runs)
    also = {finding.node: finding.evidence["also_silent"] for finding in found}
    assert also == {"a": ["b"], "b": ["a"], "c": []}


def test_a_whole_fleet_that_is_silent_is_one_finding() -> None:
    (finding,) = find_silent({f"node-{i}": 900 + i % 3 for i in range(28)}, now_s=NOW)
    assert finding.rule == "monitoring_blind"
    assert (finding.run, finding.node) == (None, None)
    assert finding.evidence["n_nodes"] == 28
    assert finding.onset_s == 902


def test_the_only_node_of_a_fleet_is_silent_not_blinding() -> None:
    (finding,) = find_silent({"quiet": 900}, now_s=NOW)
    assert finding.rule == "node_silent"


def test_a_clock_that_runs_ahead_is_not_silent() -> None:
    assert find_silent(FLEET | {"quiet": NOW + 500}, now_s=NOW) == []


def test_a_thousand_nodes_are_heard_in_a_moment() -> None:
    found = find_silent({f"n{i}": 1_000 if i % 2 else 900 for i in range(1_000)}, now_s=NOW)
    assert len(found) == 500


def test_a_node_with_which_its_run_stopped_has_crashed_and_is_not_waited_for() -> None:
    seen = FLEET | {"quiet": NOW - 6}
    pulses = {"llama": StepHeartbeat(last_step_at_s=NOW - 12, step_s=3)}
    runs = dict.fromkeys(seen, "llama")
    (finding,) = find_silent(seen, now_s=NOW, run_of=runs, pulses=pulses, crashed=("quiet",))
    assert (finding.rule, finding.cause) == ("node_silent", "node_crash")
    assert finding.evidence["steps_go_on"] is False
    assert find_silent(seen, now_s=NOW, run_of=runs, pulses=pulses) == []


def test_of_two_nodes_that_left_with_the_step_one_may_be_an_agent_that_restarts() -> None:
    def find_lost(quiet_s: int) -> set[str | None]:
        seen = FLEET | {"quiet": NOW - quiet_s, "calm": NOW - quiet_s}
        runs = dict.fromkeys(seen, "llama")
        found = find_silent(seen, now_s=NOW, run_of=runs, crashed=("quiet", "calm"))
        return {each.node for each in found if each.cause == "node_crash"}

    assert find_lost(10) == set()
    assert find_lost(15) == {"quiet", "calm"}


def test_while_peers_are_heard_of_a_late_step_alone_is_no_crash() -> None:
    seen = FLEET | {"quiet": NOW - 600}
    pulses = {"llama": StepHeartbeat(last_step_at_s=NOW - 590, step_s=3)}
    (finding,) = find_silent(seen, now_s=NOW, run_of=dict.fromkeys(seen, "llama"), pulses=pulses)
    assert finding.cause == "node_silent"


def test_a_run_that_does_not_train_proves_no_death() -> None:
    pulses = {"llama": StepHeartbeat(last_step_at_s=NOW - 590, step_s=3, trains=False)}
    seen = FLEET | {"quiet": NOW - 600}
    (finding,) = find_silent(seen, now_s=NOW, run_of={"quiet": "llama"}, pulses=pulses)
    assert finding.cause == "node_silent"


def test_a_node_of_no_run_can_wait_for_the_morning() -> None:
    found = find_silent(FLEET | {"a": 900, "b": 900}, now_s=NOW, run_of={"a": "llama"})
    assert {finding.node: finding.severity for finding in found} == {"a": "page", "b": "warn"}


def test_nodes_that_fall_silent_one_by_one_while_steps_arrive_are_ill_themselves() -> None:
    pulses = {"llama": StepHeartbeat(last_step_at_s=999, step_s=3)}
    found = find_silent({"a": 900, "b": 940}, now_s=NOW, run_of={"a": "llama"}, pulses=pulses)
    assert [finding.rule for finding in found] == ["node_silent", "node_silent"]
    (finding,) = find_silent({"a": 938, "b": 940}, now_s=NOW, pulses=pulses)
    assert finding.rule == "monitoring_blind"
