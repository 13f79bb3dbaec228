"""The share of the gradient all-reduce: when the rule fires and ends, and what it names."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.blocks import FloatArray
from telemetry.detect.findings import Finding
from telemetry.detect.inputs import DetectionInput, OpenProblem
from telemetry.detect.shares import LAYOUT, N_STEPS, SHARE, Shares
from telemetry.detect.slowdowns import find_slowdowns
from telemetry.detect.work import comparable
from telemetry.simulate.plan import Noise, Plan, RunSpec
from telemetry.simulate.shard import played_steps, start_clock
from telemetry.steps import PHASES, StepBatch
from tests.telemetry.detect.playing import (
    Change,
    both,
    from_step,
    joined,
    no_hardware,
    sampled,
    steps_of,
    unchanged,
    untimed,
    with_phases,
)

START_S = 1_700_000_000.0
EPOCH_S = 1_800_000_000
RULES_PAGE = Path(__file__).resolve().parents[3] / "docs/rules.md"


def batch_of(
    own_s: FloatArray, transfer_s: FloatArray | float, *, first: int = 100, tokens: float = 4e6,
    start_s: float = START_S, **more: FloatArray,
) -> StepBatch:  # fmt: skip
    """Let workers compute for so long, (n_steps, n_workers), wait for the last, and transfer."""
    own_s = np.asarray(own_s, float)
    lasts_s = own_s + sum(np.nan_to_num(each) for each in more.values())
    zero = np.where(np.isnan(own_s), np.nan, 0.0)
    wait_s = np.nanmax(lasts_s, axis=1, keepdims=True) - lasts_s
    phases = dict.fromkeys(PHASES, zero) | {"compute_s": own_s, "wait_s": wait_s, **more}
    phases["transfer_s"] = zero + np.asarray(transfer_s, float)
    took_s = np.nanmean(np.sum(list(phases.values()), axis=0), axis=1)
    n = len(own_s)
    workers = tuple(f"n{i}" for i in range(own_s.shape[1]))
    ended_s = start_s + np.cumsum(took_s)
    return StepBatch(
        "r", workers, np.arange(first, first + n), ended_s, phases, np.full(n, tokens)
    )


def at(
    shares: Sequence[float] | FloatArray, *, step_s: float = 1.0, n_workers: int = 4
) -> StepBatch:
    """Return steps with exactly these shares, all of it transfer."""
    share = np.repeat(np.array(shares, float)[:, None], n_workers, axis=1)
    return batch_of((1.0 - share) * step_s, share * step_s)


def inputs_of(steps: StepBatch, **more: Any) -> DetectionInput:
    now_s = float(steps.ended_at_s[-1]) + 0.5 if len(steps) else START_S
    seen = DetectionInput("r", steps.workers, steps, no_hardware(steps.workers, now_s), now_s)
    return replace(seen, **more)


def section_of(rule: str) -> str:
    return RULES_PAGE.read_text().partition(f"\n## {rule}\n")[2].partition("\n## ")[0]


def looks(
    steps: StepBatch, *, every: int = 1, since: int = 1, window: int = 180, **more: Any
) -> list[Finding | None]:
    """Return the finding of the rule after each so many steps, its alert as it says."""
    found: list[Finding | None] = []
    cache, open_rules = dict[str, Any](), set[str]()
    for end in range(since, len(steps) + 1, every):
        now = inputs_of(steps[max(0, end - window) : end], watches=cache, **more)
        of_share = [f for f in find_slowdowns(now, open_rules=open_rules) if f.rule == SHARE]
        open_rules = {SHARE} if of_share else set()
        found.append(of_share[0] if of_share else None)
    return found


def opens(steps: StepBatch, *, is_open: bool = False, every: int = 1, **more: Any) -> list[bool]:
    """Return whether the share is too high after each step, without looking for its cause."""
    shares, states = Shares(), []
    for end in range(every, len(steps) + 1, every):
        shares.update(
            inputs_of(steps[max(0, end - 180) : end], **more),
            steps[max(0, end - 180) : end].reported.timed,
            is_open=is_open,
        )
        states.append(shares.is_open)
    return states


def fires(shares: Sequence[float], **more: Any) -> bool:
    return looks(at(shares), **more)[-1] is not None


# The limit


def test_it_fires_at_the_second_step_of_a_clear_crossing() -> None:
    assert opens(at([0.1] * 10 + [0.26, 0.26])) == [False] * 11 + [True]


def test_noise_that_does_not_reach_the_limit_delays_nothing() -> None:
    rng = np.random.default_rng(1)
    usual = 0.1 + 0.003 * rng.standard_t(3, 400)
    assert opens(at([*usual, 0.38, 0.39]))[-2:] == [False, True]


def test_two_steps_above_must_follow_each_other() -> None:
    assert not any(opens(at([0.1] * 10 + [0.26, 0.24, 0.26, 0.24] * 20)))


@given(high=st.floats(0.26, 0.99), after=st.floats(0.0, 0.25))
@settings(max_examples=30, deadline=None)
def test_one_step_above_proves_nothing(high: float, after: float) -> None:
    assert not any(opens(at([0.1] * 20 + [high] + [after] * 3)))
    assert not any(opens(at([high])))


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("step_s", [1.0, 0.7, 3.3, 0.1])
def test_exactly_the_limit_never_fires(kind: type[np.floating], step_s: float) -> None:
    compute = np.full((100, 4), 0.75 * step_s, kind)
    steps = batch_of(compute, np.full((100, 4), 0.25 * step_s, kind))
    phases = {name: values.astype(kind) for name, values in steps.phases.items()}
    assert looks(replace(steps, phases=phases), every=10) == [None] * 10


def test_a_hair_above_the_limit_fires() -> None:
    assert fires([0.2501] * 10)


def test_its_limit_is_the_runs_own() -> None:
    assert not fires([0.3] * 10, limit_ratio=0.4)
    assert fires([0.12] * 10, limit_ratio=0.1, resolve_ratio=0.08)


def test_the_score_is_evidence_over_threshold() -> None:
    finding = looks(at([0.1] * 10 + [0.3] * 5))[-1]
    assert finding is not None
    assert finding.score == pytest.approx(0.3 / 0.25)


# Noise


def measured(share: float, *, seed: int, hours: float = 1.0, step_s: float = 1.3) -> StepBatch:
    """Play a healthy run with measured noise; its exchange is such that this is its mean share."""
    run = RunSpec(
        name="r", model="llama2-7b", instance="trn1.32xlarge", nodes=16, tp=8, seq_len=4096,
        global_batch=64 * max(1, round(step_s / 1.3)), compile_s=0,
        max_steps=int(hours * 3600 / step_s),
    )  # fmt: skip
    plan = Plan(run=run, seed=seed, epoch_s=EPOCH_S, noise=Noise(measured=True))
    until = EPOCH_S + 3600 + int(3 * hours * 3600)
    steps = played_steps(plan, start_clock(plan), until).reported
    low, high = 1e-3, 1e2
    for _ in range(40):
        times = (low * high) ** 0.5
        now = with_transfer(steps, times)
        is_low = now.allreduce_share_ratio[60:].mean() < share
        low, high = (times, high) if is_low else (low, times)
    return now


def with_transfer(steps: StepBatch, times: float) -> StepBatch:
    phases = {**steps.phases, "transfer_s": steps.phases["transfer_s"] * times}
    now = replace(steps, phases=phases)
    longer_s = now.step_s - steps.step_s
    return replace(now, ended_at_s=steps.ended_at_s + np.cumsum(longer_s))


@pytest.mark.parametrize("share", [0.20, 0.23, 0.245])
@pytest.mark.parametrize("seed", [4, 9])
def test_a_healthy_run_below_the_limit_has_no_alert_in_an_hour(share: float, seed: int) -> None:
    steps = measured(share, seed=seed)
    assert (steps.allreduce_share_ratio > 0.25).sum() > (3 if share > 0.2 else -1)
    assert not any(opens(steps, every=3))


@pytest.mark.parametrize(("share", "within"), [(0.255, 300), (0.27, 8), (0.30, 6), (0.40, 6)])
def test_a_crossing_is_found_the_sooner_the_clearer_it_is(share: float, within: int) -> None:
    low, high = (measured(each, seed=9) for each in (0.23, share))
    n = 1500
    states = opens(
        joined(low[:n], replace(high[n : n + within], ended_at_s=high.ended_at_s[n : n + within]
               - high.ended_at_s[n - 1] + low.ended_at_s[n - 1]))
    )  # fmt: skip
    assert not any(states[: n + 1])
    assert states[-1]


def test_it_neither_flaps_nor_lasts_when_the_share_is_near_the_limit_for_hours() -> None:
    steps = measured(0.245, seed=9, hours=2.0)
    n, shares = len(steps), steps.allreduce_share_ratio
    at_s = slice(n // 3, n // 3 + 120)
    share = shares.copy()
    share[at_s] += 0.1
    states = opens(at(share), every=2)
    changes = np.flatnonzero(np.diff(np.array(states, int)))
    assert len(changes) == 2
    begins, ends = changes * 2
    assert at_s.start <= begins <= at_s.start + 10
    assert at_s.stop <= ends <= at_s.stop + 120


def test_a_run_around_its_limit_does_not_flap() -> None:
    """Half of its steps are above: it may have an alert, and not one after the other."""
    rng = np.random.default_rng(3)
    states = opens(at(0.25 + 0.006 * rng.standard_t(3, 6000)), every=5)
    assert np.abs(np.diff(np.array(states, int))).sum() <= 2


@pytest.mark.parametrize("n_workers", [16, 64])
def test_many_workers_that_are_late_by_chance_are_no_alert(n_workers: int) -> None:
    """One step of 12 has another worker late, so that two such steps follow each other."""
    rng = np.random.default_rng(5)
    compute = np.full((3000, n_workers), 0.4)
    late = np.flatnonzero(rng.random(3000) < 1 / 12)
    compute[late, rng.integers(0, n_workers, late.size)] += 0.3
    steps = batch_of(compute, 0.06)
    above = steps.allreduce_share_ratio > 0.25
    assert (above[1:] & above[:-1]).sum() > 5
    # Until it is known how often that happens, two of them may be the first ones.
    assert not any(opens(steps)[200:])
    # The same worker all the time is no chance.
    compute[-10:, 3] = 0.7
    assert opens(batch_of(compute, 0.06))[-1]


def test_what_is_far_above_all_that_chance_gave_fires_with_two_steps() -> None:
    """One step of twelve is at 35 % by chance: two at 80 % are none of these."""
    rng = np.random.default_rng(5)
    usual = np.where(rng.random(600) < 1 / 12, 0.35, 0.15) + 0.003 * rng.standard_normal(600)
    assert opens(at([*usual, 0.8, 0.8]))[-2:] == [False, True]
    assert not opens(at([*usual, 0.36, 0.36]))[-1]


# The end


def test_it_lets_go_after_five_steps_below_the_lower_limit() -> None:
    high = [0.1] * 10 + [0.3, 0.3]
    assert fires(high + [0.2] * 4)
    assert not fires(high + [0.2] * 5)


def test_exactly_the_lower_limit_does_not_mend() -> None:
    assert fires([0.1] * 10 + [0.3, 0.3] + [0.22] * 20)


def test_between_the_two_limits_it_holds_on_for_a_minute_and_then_follows_the_evidence() -> None:
    high = [0.1] * 10 + [0.4] * 5
    assert fires(high + [0.235] * 59)
    assert not fires(high + [0.235] * 60)
    # Twenty steps at least.
    slow = [opens(at(high + [0.235] * n, step_s=10.0))[-1] for n in (19, 20)]
    assert slow == [True, False]
    # Exactly at the limit is no evidence that it is below.
    assert fires(high + [0.25] * 200)


def test_an_open_alert_of_another_process_lasts_where_nothing_says_that_it_ended() -> None:
    between = at([0.23] * 30)
    assert opens(between)[-1] is False
    assert opens(between, is_open=True)[-1] is True
    assert opens(at([0.2] * 5), is_open=True)[-1] is False
    assert opens(at([0.1] * 20 + [0.4] * 30), is_open=True, every=50)[-1] is True


def test_the_newest_healthy_steps_are_counted_towards_the_end() -> None:
    def recovery(n_good: int) -> tuple[int | None, int | None]:
        finding = looks(at([0.1] * 20 + [0.4] * 10 + [0.1] * n_good))[-1]
        assert finding is not None
        return finding.evidence.get("healthy_steps"), finding.evidence.get("steps_to_resolve")

    assert recovery(0) == (None, None)
    assert recovery(3) == (3, 5)


def test_the_next_crossing_after_an_alert_is_as_clear_as_the_first() -> None:
    states = opens(at([0.1] * 50 + [0.4] * 100 + [0.1] * 50 + [0.26] * 2))
    assert states[-3:] == [False, False, True]
    assert not any(opens(at([0.1] * 50 + [0.4] * 100 + [0.1] * 50 + [0.26] * 1))[-40:])


def test_a_crossing_begins_after_what_was_below_the_limit_and_over_before() -> None:
    found = looks(at([0.1] * 50 + [0.24] * 40 + [0.1] * 60 + [0.4] * 40))
    assert [each is not None for each in found] == [False] * 151 + [True] * 39
    last = found[-1]
    assert last is not None
    assert last.onset_s == pytest.approx(START_S + 150)


# Changes on purpose, and first steps


def test_a_batch_that_makes_the_rest_shorter_is_no_fault() -> None:
    compute = np.full((120, 4), 1.0)
    compute[60:] = 0.4
    steps = batch_of(compute, 0.2)
    smaller = replace(steps, tokens=np.where(np.arange(120) < 60, 4e6, 2e6))
    assert looks(smaller) == [None] * 120
    # Without another batch it is said, and no one is woken.
    finding = looks(steps)[-1]
    assert finding is not None
    assert (finding.severity, finding.evidence["kind"]) == ("warn", LAYOUT)
    assert finding.cause == "unknown"


def test_slower_communication_since_the_batch_was_changed_is_a_warning() -> None:
    transfer = np.where(np.arange(120) < 60, 0.2, 0.6)[:, None]
    steps = batch_of(np.ones((120, 4)), transfer)
    finding = looks(replace(steps, tokens=np.where(np.arange(120) < 60, 4e6, 2e6)))[-1]
    assert finding is not None
    assert finding.severity == "warn"
    assert finding.evidence["changed"] == ["batch"]
    assert finding.evidence["baseline_step_s"] is None


def test_steps_of_another_batch_do_not_count_once_it_is_over() -> None:
    shares = [0.23] * 60 + [0.28] * 60 + [0.24, 0.24]
    tokens = np.where(np.array(shares) == 0.28, 500.0, 1000.0)
    assert looks(replace(at(shares), tokens=tokens))[-1] is None


def test_the_first_steps_of_a_run_and_after_a_pause_are_left_out() -> None:
    first = [0.6] * 3
    steps = replace(at(first + [0.1] * 20 + first + [0.1] * 20), step=np.arange(46))
    paused = replace(steps, ended_at_s=steps.ended_at_s + 60.0 * (np.arange(46) >= 23))
    assert not any(opens(paused))
    kept = comparable(paused).step.tolist()
    assert kept == [*range(3, 23), *range(26, 46)]
    # Without a pause they are a crossing.
    assert any(opens(steps))


def test_steps_of_both_starts_in_one_window_are_taken_once() -> None:
    before = at([0.1] * 150)
    end_s = float(before.ended_at_s[-1])
    after = batch_of(np.full((100, 4), 0.9), 0.1, first=200, start_s=end_s + 60.0)
    steps, shares = joined(before, after), Shares()
    for end in range(5, 251, 5):
        window = steps[max(0, end - 180) : end]
        shares.update(inputs_of(window), window, is_open=False)
    assert shares.rows[:, 0].tolist() == after.step.tolist()


def test_steps_that_are_not_timed_are_no_pause() -> None:
    steps = sampled(steps_of(400, change=from_step(200, "transfer_s", 3.0)), every=20)
    states = opens(steps, every=20)
    assert not any(states[:11])
    assert states[12]


def test_without_timed_exchanges_there_is_no_share() -> None:
    assert looks(untimed(steps_of(60, change=from_step(30, "transfer_s", 4.0)))) == [None] * 60


def traced(steps: StepBatch, *stretches: tuple[int, int]) -> StepBatch:
    """Return steps of which only these stretches have timed exchanges."""
    rows = np.arange(len(steps))
    is_timed = np.any([(rows >= first) & (rows < end) for first, end in stretches], axis=0)
    hidden = untimed(steps).phases
    phases = {
        name: np.where(is_timed[:, None], steps.phases[name], hidden[name]) for name in PHASES
    }
    return with_phases(steps, phases)


def test_a_trace_of_a_slow_run_is_evidence_about_it_and_no_second_alert() -> None:
    steps = steps_of(260, change=from_step(160, "transfer_s", 3.0))
    found = looks(traced(steps, (200, 260)), every=5)
    assert found == [None] * len(found)
    # Where they were timed before, it is a share.
    assert looks(steps, every=5)[-1] is not None


def test_no_trace_is_about_what_comes_after_it() -> None:
    """Neither what it showed once that is over, nor the share of the next slow steps."""
    slow = from_step(160, "transfer_s", 3.0, until=240), from_step(410, "transfer_s", 3.0)
    steps = steps_of(480, change=both(*slow))
    found = looks(traced(steps, (200, 220), (450, 480)), every=5)
    assert found == [None] * len(found)


def test_a_share_that_was_above_before_this_process_began_is_no_news() -> None:
    everything = at([0.32] * 200 + [0.31] * 4 + [0.34] * 60)

    def earlier(since_s: float) -> StepBatch:
        return everything[:204][everything.ended_at_s[:204] >= since_s]

    assert looks(everything[200:], since=60, every=4, earlier=earlier) == [None] * 2


def test_after_a_restart_of_this_process_the_past_is_read_once() -> None:
    everything = at([0.1] * 300 + [0.26, 0.26])
    read: list[float] = []

    def earlier(since_s: float) -> StepBatch:
        read.append(since_s)
        return everything[:290]

    assert opens(everything[290:], earlier=earlier)[-1]
    assert len(read) == 1


# Cause and place


def test_a_slow_node_is_named_and_has_no_other_alert() -> None:
    # A transfer of 16 %, and then the others wait for a fifth of the step.
    steps = steps_of(260, n_workers=8, change=from_step(200, "compute_s", 1.4, workers=[2]))
    found = looks(steps, every=5)
    assert found[39] is None
    last = found[-1]
    assert last is not None
    assert (last.node, last.cause, last.severity) == ("n2", "slow_compute", "page")
    assert last.evidence["kind"] == "waiting"
    assert last.victims == tuple(f"n{i}" for i in range(8) if i != 2)
    assert last.onset_s == pytest.approx(float(steps.ended_at_s[199]), abs=3.0)
    waits = last.evidence["wait_by_worker"]
    assert min(waits, key=waits.get) == "n2"
    others = find_slowdowns(inputs_of(steps), open_rules={SHARE})
    assert [each.rule for each in others if each.node == "n2"] in ([], [SHARE])


def test_a_longer_transfer_is_named_and_before_that_it_is_known_to_be_the_transfer() -> None:
    steps = steps_of(260, change=from_step(200, "transfer_s", 2.5))
    found = looks(steps)
    first = next(each for each in found if each is not None)
    last = found[-1]
    assert last is not None
    assert (first.cause, first.severity, first.evidence["kind"]) == (
        "network", "page", "transferring",
    )  # fmt: skip
    assert {each.cause for each in found if each is not None} == {"network"}
    assert (last.node, last.evidence["kind"]) == (None, "transferring")
    # The exchange, not the step, and how certain it was.
    before, since = (
        np.median(steps.phases["transfer_s"][rows]) for rows in (slice(200), slice(200, None))
    )
    assert last.evidence["baseline_phase_s"] == pytest.approx(before, rel=0.05)
    assert last.evidence["phase_s"] == pytest.approx(since, rel=0.05)
    assert first.evidence["nats"] >= first.evidence["level_nats"] > 10.0


def test_what_begins_long_after_a_share_that_is_the_layouts_has_an_alert_of_its_own() -> None:
    usual = from_step(0, "transfer_s", 2.0)
    slow = from_step(200, "compute_s", 1.4, workers=[2])
    steps = steps_of(260, n_workers=8, change=both(usual, slow))
    cache: dict[str, Any] = {}
    for end in range(5, 261, 5):
        now = inputs_of(steps[max(0, end - 180) : end], watches=cache)
        found = {each.rule: each for each in find_slowdowns(now, open_rules={SHARE})}
    assert found[SHARE].evidence["kind"] == LAYOUT
    assert (found[SHARE].severity, found[SHARE].node) == ("warn", None)
    assert found["step_slow"].node == "n2"


def test_a_node_that_was_late_before_is_not_named_for_a_transfer_that_takes_longer() -> None:
    late = from_step(100, "compute_s", 1.06, workers=[2])
    longer = from_step(200, "transfer_s", 2.5)
    found = looks(steps_of(240, n_workers=8, change=both(late, longer)))
    kinds = {(each.node, each.evidence["kind"]) for each in found if each is not None}
    assert kinds == {(None, "transferring")}


def test_an_alert_outlasts_the_steps_that_are_kept() -> None:
    n = N_STEPS + 300
    steps = steps_of(n, change=from_step(150, "compute_s", 1.4, workers=[2]))
    found = looks(steps, every=20)
    first = next(i for i, each in enumerate(found) if each is not None)
    assert {each.node for each in found[first + 1 :] if each is not None} == {"n2"}
    assert None not in found[first:]


def test_the_culprit_of_the_open_alert_stays_named_when_a_worse_one_comes() -> None:
    slow = from_step(200, "compute_s", 1.4, workers=[2])
    worse = from_step(260, "transfer_s", 6.0)
    steps = steps_of(330, n_workers=8, change=both(slow, worse))
    cache: dict[str, Any] = {}
    alert: tuple[OpenProblem, ...] = ()
    for end in range(5, len(steps) + 1, 5):
        now = inputs_of(steps[max(0, end - 180) : end], watches=cache, open_problems=alert)
        found = {each.rule: each for each in find_slowdowns(now, open_rules={SHARE})}
        if SHARE in found:
            alert = (OpenProblem(SHARE, found[SHARE].cause, found[SHARE].node),)
    assert found[SHARE].node == "n2"


def test_a_worker_that_reports_nothing_is_named_and_does_no_harm() -> None:
    compute = np.full((40, 4), 0.9)
    compute[20:] = 0.6
    compute[:, 3] = np.nan
    transfer = np.where(np.arange(40) < 20, 0.1, 0.4)[:, None]
    finding = looks(batch_of(compute, transfer))[-1]
    assert finding is not None
    assert finding.evidence["unreported"] == ["n3"]
    assert finding.evidence["share_ratio"] == pytest.approx(0.4)
    assert "n3" not in finding.victims


@pytest.mark.parametrize(
    "change",
    [from_step(200, "compute_s", 1.4, workers=[2]), from_step(0, "transfer_s", 2.0)],
    ids=["a slow node", "the layout"],
)
def test_the_evidence_is_plain_json_and_documented(change: Change) -> None:
    finding = looks(steps_of(260, n_workers=8, change=change), every=10)[-1]
    assert finding is not None
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence
    explained = set(re.findall(r"`(\w+)`", section_of(SHARE)))
    assert set(finding.evidence) - explained == set()
    assert finding.evidence["step_s"] > 1.0
    assert finding.evidence["share_ratio"] == pytest.approx(
        finding.evidence["wait_ratio"] + finding.evidence["transfer_ratio"], abs=0.01
    )


# Bad input

BAD = st.sampled_from([np.nan, np.inf, 0.0, -1.0, 1e12])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n_workers=st.integers(1, 3), n=st.integers(0, 40))
def test_bad_values_raise_nothing(data: st.DataObject, n_workers: int, n: int) -> None:
    """A warning of numpy would be an exception, too."""
    steps = at([0.1] * (n // 2) + [0.4] * (n - n // 2), n_workers=n_workers)
    phases = {name: values.copy() for name, values in steps.phases.items()}
    tokens, ended_s = steps.tokens.copy(), steps.ended_at_s.copy()
    numbers = steps.step.copy()
    places = st.tuples(st.sampled_from(["compute_s", "transfer_s"]), st.integers(0, 39))
    for (name, row), bad in data.draw(st.lists(st.tuples(places, BAD), max_size=6)):
        phases[name][row : row + 3, 0] = bad
    for row, bad in data.draw(st.lists(st.tuples(st.integers(0, 39), BAD), max_size=3)):
        tokens[row:] = bad
    for row, jump_s in data.draw(
        st.lists(st.tuples(st.integers(0, 39), st.sampled_from([-1e9, -5.0, 1e9])), max_size=2)
    ):
        ended_s[row:] += jump_s
    numbers[data.draw(st.integers(0, 40)) :] -= data.draw(st.sampled_from([0, 30, 2000]))
    spoiled = replace(steps, phases=phases, tokens=tokens, ended_at_s=ended_s, step=numbers)
    shares = Shares()
    for end in range(0, n + 1, 5):
        for is_open in (False, True):
            shares.update(inputs_of(spoiled[:end]), spoiled[:end].reported.timed, is_open=is_open)


@given(share=st.floats(0.0, 0.25), n_workers=st.integers(1, 3), n=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_a_constant_share_up_to_the_limit_never_fires(
    share: float, n_workers: int, n: int
) -> None:
    assert not any(opens(at([share] * n, n_workers=n_workers), every=max(1, n // 5)))


def test_a_run_without_steps_or_a_worker_alone_has_no_finding() -> None:
    assert find_slowdowns(inputs_of(StepBatch.empty("r", ("n0",))), open_rules={SHARE}) == []
    alone = steps_of(40, n_workers=1, change=unchanged)
    assert looks(alone) == [None] * 40
    assert looks(at([0.9])) == [None]
