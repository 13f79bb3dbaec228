"""Rare harmless events: pure, as frequent as stated, and limited to what they are about."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from drills import observation as drills_observation
from drills.observation import arrival_s, arrived_until, observed, report_phases
from drills.scenario import load_scenario
from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate import background, observation, shard, timeline
from telemetry.simulate.background import (
    Event,
    Reports,
    delays_s,
    environment,
    held_up,
    is_far,
    lost_steps,
    missed_scrapes,
    reports_of,
    stopped,
)
from telemetry.simulate.inputs import FULL, TIERS
from telemetry.simulate.plan import Noise, Plan
from telemetry.simulate.script import script_of
from telemetry.simulate.shard import play, played_steps, start_clock
from tests.telemetry.simulate.played import EPOCH, SMALL, VISION, plan_of

ON = Noise(measured=False, background=True)
HOURS_S = 7200
EVENTS = environment(1.0)
REPORTS = Reports(np.uint64(7), EVENTS)
RUN = msgspec.structs.replace(VISION, nodes=16, global_batch=16384)


# Where everything is observed, probes feel no traffic.
PROBED = TIERS["agent_hooks"]


def changed(**rates: float) -> Mapping[str, Event]:
    """Return the events with other rates."""
    new = {name: msgspec.structs.replace(EVENTS[name], rate=rate) for name, rate in rates.items()}
    return {**EVENTS, **new}


def with_background(plan: Plan, **more: object) -> Plan:
    return msgspec.structs.replace(plan, noise=ON, **more)


@cache
def hardware(*, is_on: bool) -> Mapping[str, FloatArray]:
    """Return two hours of 16 nodes: (n_ticks, n_nodes, n_parts) each."""
    plan = msgspec.structs.replace(
        plan_of(RUN), inputs=PROBED, noise=ON if is_on else Noise(measured=False)
    )
    return play(plan, "vit/0", start_clock(plan), EPOCH + HOURS_S).span.values


@cache
def without_delays() -> Mapping[str, FloatArray]:
    """Return the hours of ``hardware`` with background events that do not delay steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "environment", lambda _: changed(loader=0.0, collection=0.0))
        plan = with_background(plan_of(RUN, seed=7), inputs=PROBED, shard_size=64)
        return play(plan, "vit/0", start_clock(plan), EPOCH + HOURS_S).span.values


def gaps() -> IntArray:
    """Seconds that each gap in reports lasts."""
    missing = np.isnan(without_delays()["vcpu_usage_ratio"][:, :, 0])
    missing[: np.flatnonzero(~missing.all(axis=1))[0]] = False
    edges = np.diff(np.pad(missing, ((1, 1), (0, 0))).astype(int), axis=0)
    began, ended = (np.argwhere(way == edges.T)[:, 1] for way in (1, -1))
    return np.asarray(ended - began)


def test_a_scenario_file_turns_it_on() -> None:
    text = """
    name = "x"
    duration_s = 60
    [noise]
    background = true
    [[run]]
    name = "r"
    model = "bert-large"
    instance = "trn1.2xlarge"
    nodes = 2
    seq_len = 128
    global_batch = 4
    """

    assert load_scenario(text).noise.harmless == 1
    assert not Noise().background


@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
def test_a_factor_multiplies_rates_and_sizes(factor: float) -> None:
    run = msgspec.structs.replace(SMALL, nodes=64, global_batch=128)
    plain, more = (
        script_of(msgspec.structs.replace(plan_of(run), noise=Noise(environment=each)))
        for each in (1.0, factor)
    )
    waits_s, longer_s = (delays_s(script, "loader", np.arange(20_000)) for script in (plain, more))

    assert (longer_s > 0).mean() == pytest.approx(factor * (waits_s > 0).mean(), rel=0.1)
    means_s = [each[each > 0].mean() for each in (waits_s, longer_s)]
    assert means_s[1] == pytest.approx(factor * means_s[0], rel=0.2)
    for name, event in environment(factor).items():
        assert event.rate == pytest.approx(factor * EVENTS[name].rate)
        assert event.high == pytest.approx(factor * EVENTS[name].high)
    # All of them can be played.
    plan = msgspec.structs.replace(plan_of(RUN), inputs=PROBED, noise=Noise(environment=factor))
    played = play(plan, "vit/0", start_clock(plan), EPOCH + 1800)
    assert len(played.steps) > 100
    assert stopped(plan, EPOCH + 1800, within_s=1e5)


def test_the_table_is_documented_and_detection_does_not_know_it() -> None:
    root = Path(background.__file__).parents[2]
    documented = (root / "docs" / "physics.md").read_text()
    for event in EVENTS.values():
        assert f"| {event.what} | {event.rate:g} per {event.per} |" in documented
    readers = [*root.glob("telemetry/detect*/**/*.py"), *root.glob("telemetry/evidence/*.py")]
    assert len(readers) > 20
    for text in map(Path.read_text, readers):
        assert "environment.toml" not in text
        assert "telemetry.simulate" not in text


def test_a_run_without_it_draws_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    for module, name in (
        (timeline, "delays_s"),
        (shard, "add_background"),
        (drills_observation, "held_up"),
        (observation, "lost_steps"),
        (drills_observation, "missed_scrapes"),
    ):
        monkeypatch.setattr(module, name, refuse)
    for tier, inputs in TIERS.items():
        plan = msgspec.structs.replace(plan_of(SMALL, seed=77), inputs=inputs)
        played = play(plan, "bert/0", start_clock(plan), EPOCH + 60)
        phases = report_phases(plan.seed, plan.run.node_names)
        observed(inputs, played.span, phases, background=reports_of(plan))
        arrived_until(inputs, phases, EPOCH + 60, background=reports_of(plan))
        assert (len(arrival_s(plan, played.steps)) > 0) == inputs.step_reports, tier


@pytest.mark.parametrize("shard_size", [3, 16])
def test_cutting_and_sharding_change_nothing(shard_size: int) -> None:
    plan = with_background(plan_of(RUN), inputs=FULL)
    split = msgspec.structs.replace(plan, shard_size=shard_size)
    until = EPOCH + 2400
    whole = play(plan, "vit/0", start_clock(plan), until)

    shards = []
    for name in split.shards:
        clock, pieces = start_clock(split), []
        for cut in (EPOCH + 7, EPOCH + 601, EPOCH + 1811, until):
            pieces.append(play(split, name, clock, cut))
            clock = pieces[-1].clock
        assert clock == whole.clock
        shards.append(pieces)

    for name, values in whole.span.values.items():
        got = [np.concatenate([piece.span.values[name] for piece in pieces]) for pieces in shards]
        np.testing.assert_array_equal(np.concatenate(got, axis=1), values, err_msg=name)
    ended = np.concatenate([piece.steps.ended_at_s for piece in shards[0]])
    np.testing.assert_array_equal(ended, whole.steps.ended_at_s)


def test_without_delays_steps_and_most_metrics_are_those_of_a_run_without_background() -> None:
    on, off = without_delays(), hardware(is_on=False)
    changed = {"efa_latency_s", "efa_retransmits_per_s", "vcpu_usage_ratio"}

    for name, values in on.items():
        known = np.isfinite(values) | np.isnan(off[name])
        if name in changed:
            assert not np.array_equal(values[known], off[name][known], equal_nan=True), name
        else:
            np.testing.assert_array_equal(values[known], off[name][known], err_msg=name)


def test_delays_are_as_frequent_and_long_as_stated() -> None:
    script, step = (
        script_of(
            with_background(plan_of(msgspec.structs.replace(SMALL, nodes=64, global_batch=128)))
        ),
        np.arange(20_000),
    )
    waits_s, stops_s = delays_s(script, "loader", step), delays_s(script, "collection", step)

    assert (waits_s > 0).mean() == pytest.approx(1 / 4000, rel=0.2)
    assert waits_s[waits_s > 0].mean() == pytest.approx(0.8, rel=0.2)
    assert waits_s.max() <= 6
    assert (stops_s > 0).mean() == pytest.approx(1 / 1000, rel=0.1)
    assert stops_s[stops_s > 0].min() >= 0.1
    assert stops_s[stops_s > 0].mean() == pytest.approx(0.4, rel=0.1)


def test_a_delayed_worker_makes_the_others_wait() -> None:
    plan = plan_of(SMALL)
    off, on = (played_steps(p, start_clock(p), EPOCH + 900) for p in (plan, with_background(plan)))
    n = min(len(off), len(on))
    other_s, input_s = (
        on.phases[name][:n] - off.phases[name][:n] for name in ("other_s", "input_s")
    )

    np.testing.assert_array_equal(on.phases["compute_s"][:n], off.phases["compute_s"][:n])
    np.testing.assert_array_equal(on.phases["transfer_s"][:n], off.phases["transfer_s"][:n])
    assert (other_s > 0).any()
    assert (input_s > 0).any()
    longer_s = on.step_s[:n] - off.step_s[:n]
    most_s = (other_s + input_s).max(axis=1)
    assert (longer_s <= most_s + 1e-4).all()
    is_long = most_s > 0.1
    assert longer_s[is_long] == pytest.approx(most_s[is_long], abs=0.05)
    assert longer_s[~is_long] == pytest.approx(0, abs=1e-4)


def test_half_of_a_nodes_devices_retransmit_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "environment", lambda _: changed(burst=6.0))
    script, ticks = script_of(with_background(plan_of(RUN))), EPOCH + np.arange(1, 14_401)
    n = script.instance.n_efa
    values = {
        name: np.zeros((len(ticks), 16, n), np.float32)
        for name in ("efa_retransmits_per_s", "efa_tx_packets_per_s")
    }
    values["efa_tx_packets_per_s"] += 1e6
    background._retransmit(script, values, ticks - script.epoch_s, np.arange(16))

    lost = values["efa_retransmits_per_s"] / 1e6
    some = lost[lost > 0]
    assert some.min() > 1.9e-4
    assert some.max() < 3.01e-3
    assert lost[lost.any(axis=2)].astype(bool).sum(axis=1).max() <= n
    halves = lost.reshape(*lost.shape[:2], 2, n // 2).astype(bool)
    assert (halves.all(axis=3) == halves.any(axis=3)).all()
    # 16 nodes, 4 hours, every 10 minutes, 17.5 s each.
    assert halves.any(axis=3).sum() == pytest.approx(16 * 24 * 17.5, rel=0.25)


def test_probes_are_longer_when_their_link_is_busy_and_far_nodes_always() -> None:
    on, off = without_delays()["efa_latency_s"], hardware(is_on=False)["efa_latency_s"]
    script = script_of(with_background(plan_of(RUN), inputs=PROBED, shard_size=64))
    far = is_far(script)
    ratio = on[100:] / off[100:] / np.where(far, 1 + EVENTS["far"].high, 1)[:, None]
    is_known = np.isfinite(ratio)
    sent = hardware(is_on=False)["efa_tx_bytes_per_s"][100:]
    busy = sent / (script.instance.network_bytes_per_s / script.instance.n_efa)

    assert far.sum() == 2
    assert far[:8].sum() == 1
    assert np.nanmin(ratio) > 0.9999
    assert np.nanmax(ratio) < 2.0001
    is_longer = (ratio > 1.0001)[is_known]
    assert is_longer.mean() == pytest.approx(busy[is_known].mean(), rel=0.1)
    # The devices of a node that meet it take equally longer.
    most, least = (np.where(ratio > 1.0001, ratio, x) for x in (0, np.inf))
    longest, shortest = most.max(axis=2), least.min(axis=2)
    assert (longest - shortest)[longest > 0].max() < 1e-4


def test_one_rack_in_eight_is_far() -> None:
    run = msgspec.structs.replace(SMALL, nodes=64, global_batch=128, nodes_per_rack=4)
    far = is_far(script_of(with_background(plan_of(run)))).reshape(16, 4)

    assert (far.all(axis=1) == far.any(axis=1)).all()
    assert far[:8, 0].sum() == far[8:, 0].sum() == 1


def test_agents_restart_about_once_a_day_and_all_in_a_rollout() -> None:
    script = script_of(with_background(plan_of(RUN)))
    since_s, ranks = np.arange(1.0, 96 * 3600), np.arange(16)
    restarting = background._restarting(script, since_s, ranks)
    begins = (restarting[1:] & ~restarting[:-1])[: 96 * 3600 // 3600 * 3600]
    per_hour = np.array([each.sum(axis=0) for each in np.array_split(begins, 96)])
    is_rollout = (per_hour > 0).mean(axis=1) > 0.8

    assert 0.12 < is_rollout.mean() < 0.4
    assert per_hour[~is_rollout].mean() == pytest.approx(1 / 24, rel=0.3)
    assert 2 <= restarting.sum() / begins.sum() <= 26


def test_agents_say_that_they_end_in_a_rollout_and_not_before_a_crash() -> None:
    plan = with_background(plan_of(RUN), inputs=TIERS["agent_collectives"])
    script = script_of(plan)
    since_s, ranks = np.arange(1.0, 96 * 3600), np.arange(16)
    restarting = background._restarting(script, since_s, ranks)
    row, node = np.nonzero(restarting[1:] & ~restarting[:-1])
    end = np.array(
        [np.argmin(restarting[first:, i]) for first, i in zip(row + 1, node, strict=True)]
    )
    said = np.array(
        [
            plan.run.node_names[i]
            in stopped(plan, script.epoch_s + since_s[first] + 1, within_s=9)
            for first, i in zip(row, node, strict=True)
        ]
    )

    assert 0.6 < said.mean() < 0.95
    assert end[~said].max() <= 9
    assert end[said].max() >= 20
    assert stopped(msgspec.structs.replace(plan, noise=Noise()), EPOCH + 9, within_s=1e6) == ()
    scraped = msgspec.structs.replace(plan, inputs=TIERS["prometheus_15s"])
    assert stopped(scraped, EPOCH + 9, within_s=1e6) == ()


def test_gaps_in_reports_last_as_long_as_stated() -> None:
    lasts_s = gaps()

    assert len(lasts_s)
    assert lasts_s.min() >= 2
    assert lasts_s.max() <= 26


def test_a_cron_job_uses_vcpus_for_20_s_each_half_hour() -> None:
    on, off = (
        v["vcpu_usage_ratio"][100:, :, 0] for v in (without_delays(), hardware(is_on=False))
    )
    more = on - off
    is_on = more > 0.01

    assert is_on.mean() == pytest.approx(20 / 1800, rel=0.2)
    assert more[is_on & (on < 1)].min() > 0.099
    assert more[is_on].max() < 0.301
    assert (more[~is_on & np.isfinite(more)] == 0).all()


@pytest.mark.parametrize("every_s", [1, 5])
def test_late_reports_hold_up_newer_ones(every_s: int) -> None:
    phases = report_phases(1, tuple(f"n-{i}" for i in range(64)))
    inputs = TIERS["agent_hooks" if every_s == 5 else "agent_collectives"]
    seconds = range(EPOCH, EPOCH + 4000)
    usual = np.array([arrived_until(inputs, phases, now) for now in seconds])
    some = np.array([arrived_until(inputs, phases, now, background=REPORTS) for now in seconds])

    assert (np.diff(some, axis=0) >= 0).all()
    behind_s = usual - some
    assert 0 < behind_s.max() <= 7 + every_s
    assert (behind_s > 0).any(axis=0).sum() > 20
    # Late for 3.5 s on average.
    assert (behind_s > 0).mean() == pytest.approx(3.5 / every_s / 1000, rel=0.4)


def test_reports_of_one_second_are_held_up_until_the_late_one_has_arrived() -> None:
    newest = np.full(4000, EPOCH)
    held = np.array([held_up(REPORTS, newest + i, EPOCH + i, 1) for i in range(9)]) - EPOCH

    is_held = held[0] < 0
    assert 0 < is_held.sum() < 100
    assert (held[8][is_held] >= 7).sum() > 0.9 * is_held.sum()


def test_scrapes_fail_and_step_reports_are_lost_at_their_rates() -> None:
    phases = report_phases(1, tuple(f"n-{i}" for i in range(64)))
    missed = missed_scrapes(REPORTS, EPOCH + np.arange(30_000), phases, 15)
    lost = lost_steps(REPORTS, np.arange(5000), 64)

    assert missed.mean() == pytest.approx(1e-3, rel=0.3)
    assert lost.mean() == pytest.approx(2e-3, rel=0.15)
    edges = np.diff(missed.astype(int), axis=0)
    began, ended = np.argwhere(edges.T == 1), np.argwhere(edges.T == -1)
    assert set((ended[: len(began), 1] - began[: len(ended), 1]).tolist()) <= {15, 30}


def test_step_reports_are_lost_only_where_the_tier_is_not_ideal() -> None:
    hooks = with_background(plan_of(SMALL), inputs=TIERS["agent_hooks"])
    ideal = msgspec.structs.replace(hooks, inputs=FULL)
    some, all_ = (play(p, "bert/0", start_clock(p), EPOCH + 900).steps for p in (hooks, ideal))
    lost = np.isnan(some.phases["compute_s"])

    assert reports_of(ideal) is None
    assert reports_of(plan_of(SMALL)) is None
    assert not np.isnan(all_.phases["compute_s"]).any()
    assert 0 < lost.mean() < 0.005
    waited_s = arrival_s(hooks, some) - some.ended_at_s
    assert (waited_s[lost.any(axis=1)] > 5).all()


def test_the_pace_of_nodes_differs_for_good() -> None:
    plan = plan_of(msgspec.structs.replace(SMALL, nodes=64, global_batch=128))
    uneven = msgspec.structs.replace(plan, noise=Noise(measured=False, node_cv=0.01))
    paces = [
        played_steps(p, start_clock(p), EPOCH + 120).phases["compute_s"][5:].mean(axis=0)
        for p in (plan, uneven)
    ]
    ratio = paces[1] / paces[0]

    assert ratio.std() == pytest.approx(0.009, rel=0.3)
    assert np.abs(ratio - 1).max() < 0.0205
