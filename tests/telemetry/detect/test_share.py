"""The headline rule fires above its limit, never at it, and lets go late."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.detect import find
from telemetry.detect.findings import CauseScore, part_of
from telemetry.detect.pace import busy_s
from telemetry.detect.share import Episode, delays, episode
from tests.telemetry.detect.runs import inputs, steps_at, steps_of


def fires(shares: list[float], **more: Any) -> bool:
    return bool(find(inputs(steps_at(shares), **more)))


def of(shares: list[float], *, step_s: float, is_open: bool = False) -> Episode | None:
    x = np.array(shares)
    return episode(
        x, np.full(x.size, step_s), limit_ratio=0.25, resolve_ratio=0.22, is_open=is_open
    )


def by_the_book(shares: list[float], *, is_open: bool) -> bool:
    """Follow the rule step by step, remembering its state; steps of 3 s."""
    above = below = 0
    fired_at = -1
    for i, share in enumerate(shares):
        above = above + 1 if share > 0.25 + 1e-6 else 0
        below = below + 1 if share < 0.22 - 1e-6 else 0
        fired_at = i if above >= 2 else fired_at
        is_settled = not above and i - 20 >= fired_at and np.mean(shares[i - 19 : i + 1]) < 0.2425
        is_open = above >= 2 or (is_open and below < 5 and not is_settled)
    return is_open


def test_it_fires_at_the_second_step_above_the_limit() -> None:
    assert not fires([0.1] * 10 + [0.26])
    assert fires([0.1] * 10 + [0.26, 0.26])


def test_two_steps_above_must_follow_each_other() -> None:
    assert not fires([0.1] * 10 + [0.26, 0.24, 0.26, 0.24])


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_exactly_the_limit_never_fires(kind: type[np.floating]) -> None:
    for step_s in (1.0, 0.7, 3.3, 0.1):
        compute = np.full((50, 4), 0.75 * step_s, kind)
        steps = steps_of(compute, transfer_s=np.full((50, 4), 0.25 * step_s, kind))
        assert find(inputs(steps)) == []


def test_a_hair_above_the_limit_fires() -> None:
    assert fires([0.2501] * 10)


def test_its_limit_is_the_runs_own() -> None:
    assert not fires([0.3] * 10, limit_ratio=0.4)
    assert fires([0.12] * 10, limit_ratio=0.1, resolve_ratio=0.08)


def test_it_holds_on_between_the_two_limits() -> None:
    high = [0.1] * 10 + [0.3, 0.3]
    assert fires(high + [0.23] * 40)
    assert fires(high + [0.245] * 100)


def test_it_lets_go_after_five_steps_below_the_lower_limit() -> None:
    high = [0.1] * 10 + [0.3, 0.3]
    assert fires(high + [0.2] * 4)
    assert not fires(high + [0.2] * 5)


def test_exactly_the_lower_limit_does_not_mend() -> None:
    assert fires([0.1] * 10 + [0.3, 0.3] + [0.22] * 20)


def test_two_noisy_steps_of_a_run_that_is_usually_near_the_limit_do_not_fire() -> None:
    usual = [0.23, 0.24, 0.235, 0.226] * 10
    assert of([*usual, 0.27, 0.27], step_s=0.3) is None
    assert of([*usual, 0.27, 0.27], step_s=3.0) is not None
    assert of([*usual, 0.33, 0.33], step_s=0.3) is not None


def test_delays_of_different_workers_in_two_neighbouring_steps_do_not_fire() -> None:
    """A usual share of 22 %; in some steps one worker is late by 0.3 s."""
    compute = np.full((46, 8), 3.3)

    def of_late(*workers: int) -> set[str]:
        late = compute.copy()
        late[np.arange(-len(workers), 0), list(workers)] += 0.3
        steps = steps_of(late, transfer_s=0.95, workers=[f"n-{i}" for i in range(8)])
        assert all(steps.allreduce_share_ratio[-len(workers) :] > 0.25)
        assert all(steps.allreduce_share_ratio[: -len(workers)] < 0.23)
        return {each.rule for each in find(inputs(steps, nodes=steps.workers))}

    assert "allreduce_share" not in of_late(1, 5)
    assert "allreduce_share" in of_late(5, 5)
    assert "allreduce_share" in of_late(1, 5, 2)


@pytest.mark.parametrize(
    ("late", "step_s", "n_fires"),
    [([5, 26, 20, 9], 0.5, 5), ([5, 5, 5], 0.5, 3), ([-1, -1, -1], 0.5, 3), ([5, 26], 3.0, 3)],
    ids=["different ones", "the same one", "all", "long steps"],
)
def test_where_some_worker_is_often_late_more_steps_in_a_row_are_chance(
    late: list[int], step_s: float, n_fires: int
) -> None:
    """One of 28 steps is above the limit, each for another worker's delay."""

    def fires_after(late: list[int]) -> bool:
        delayed_by = np.full(280, -1)
        delayed_by[::28] = np.arange(10)
        delayed_by = np.append(delayed_by, late)
        shares = np.where(delayed_by >= 0, 0.5, 0.1)
        shares[280:] = 0.5
        # The steps that are late take long.
        step = np.where(shares > 0.25, 6 * step_s, step_s)
        limits: dict[str, Any] = {"limit_ratio": 0.25, "resolve_ratio": 0.22, "is_open": False}
        return episode(shares, step, delayed_by=delayed_by, **limits) is not None

    more = [*late, late[-1] if late[0] == late[-1] else 7]
    assert [fires_after(more[:n]) for n in (n_fires - 1, n_fires)] == [False, True]


def test_a_delay_counts_where_it_alone_lifts_the_step_above_the_limit() -> None:
    compute = [[3.0, 3.0, 3.5, 3.0], [3.0, 3.5, 3.5, 3.0], [3.0, 3.0, 3.0, 3.0]]
    assert delays(steps_of(compute, transfer_s=0.9), limit_ratio=0.25).tolist() == [2, -1, -1]
    assert delays(steps_of(compute, transfer_s=1.3), limit_ratio=0.25).tolist() == [-1, -1, -1]


def test_a_process_that_stops_twice_in_a_row_is_chance() -> None:
    compute, paused = np.full((3, 4), 3.0), np.zeros((3, 4))
    paused[:2, 2] = 0.5
    steps = steps_of(compute, transfer_s=0.9, other_s=paused)
    first, second, last = delays(steps, limit_ratio=0.25).tolist()
    assert last == -1
    assert min(first, second) >= 0
    assert first != second


def test_a_run_usually_near_the_limit_fires_when_seconds_are_above_it() -> None:
    usual = [0.23, 0.24, 0.235, 0.226] * 10
    assert of(usual + [0.26] * 10, step_s=0.3) is None
    assert of(usual + [0.26] * 15, step_s=0.3) is not None


def test_a_minute_well_below_the_limit_mends_what_never_falls_below_the_lower_one() -> None:
    high = [0.4] * 5
    assert of(high + [0.235] * 59, step_s=1.0) is not None
    assert of(high + [0.235] * 60, step_s=1.0) is None
    assert of(high + [0.245] * 120, step_s=1.0) is not None


def test_steps_of_another_batch_size_do_not_fire_once_it_is_over() -> None:
    shares = [0.23] * 60 + [0.28] * 60 + [0.24, 0.24]
    steps = steps_at(shares)
    changed = np.where(np.array(shares) == 0.28, 500.0, 1000.0)
    assert find(inputs(replace(steps, tokens=changed))) == []


def test_the_newest_healthy_steps_are_counted_towards_the_end() -> None:
    def recovery(n_good: int) -> tuple[int | None, int | None]:
        shares = [0.1] * 20 + [0.4] * 10 + [0.1] * n_good
        found = find(inputs(steps_at(shares)), open_rules=["allreduce_share"])
        evidence = next(each for each in found if each.rule == "allreduce_share").evidence
        return evidence.get("healthy_steps"), evidence.get("steps_to_resolve")

    assert recovery(0) == (None, None)
    assert recovery(3) == (3, 5)


def test_an_open_alert_lasts_where_the_window_states_nothing() -> None:
    between = inputs(steps_at([0.23] * 30))
    assert find(between) == []
    assert len(find(between, open_rules={"allreduce_share"})) == 1


def test_an_open_alert_ends_by_five_good_steps() -> None:
    assert find(inputs(steps_at([0.2] * 5)), open_rules={"allreduce_share"}) == []


@given(
    shares=st.lists(st.sampled_from([0.1, 0.21, 0.22, 0.24, 0.25, 0.26, 0.4]), max_size=40),
    is_open=st.booleans(),
)
def test_it_is_the_two_state_rule_without_its_memory(
    shares: list[float], *, is_open: bool
) -> None:
    found = of(shares, step_s=3.0, is_open=is_open)
    assert (found is not None) == by_the_book(shares, is_open=is_open)


def test_a_new_episode_begins_its_baseline_after_the_last_one() -> None:
    found = of([0.1] * 5 + [0.4] * 5 + [0.1] * 8 + [0.3] * 3, step_s=1.0)
    assert found == Episode(start=18, healthy_from=10)


def test_a_third_episode_begins_its_baseline_after_the_second_one() -> None:
    found = of(([0.1] * 6 + [0.4] * 3) * 3, step_s=1.0)
    assert found == Episode(start=24, healthy_from=18)


def test_time_is_conserved() -> None:
    rng = np.random.default_rng(3)
    steps = steps_of(1 + rng.random((20, 4)), transfer_s=0.2)
    phases = steps.phases
    total = busy_s(steps) + phases["wait_s"] + phases["transfer_s"]
    np.testing.assert_allclose(total, steps.worker_step_s)
    assert np.ptp(total, axis=1).max() < 1e-12


def test_the_score_is_evidence_over_threshold() -> None:
    (finding,) = find(inputs(steps_at([0.1] * 10 + [0.3] * 5)))
    assert finding.score == pytest.approx(0.3 / 0.25)
    (just,) = find(inputs(steps_at([0.1] * 10 + [0.24] + [0.2502] * 2)))
    assert 1.0 < just.score < 1.01


def test_a_class_of_causes_keeps_the_kind_of_part_that_its_cause_named() -> None:
    core = CauseScore("slow_core", 1.0, "core_utilization_ratio", 0.9, 0.5, 31, "ratio", "a", 7)
    named = replace(core, cause="slow_compute")
    link = CauseScore("network", 1.0, "efa_latency_s", 1e-4, 2e-5, 31, "s", "a", 0)

    assert [part_of(s.cause, s.device, {"culprit": s.figure()}) for s in (core, named, link)] == [
        "core",
        "core",
        "efa_device",
    ]
    assert part_of("throttle", 3, {}) == "device"
    assert part_of("throttle", None, {}) is None
