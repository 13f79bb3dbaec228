"""Noise is addressable, looks random, and repeats for the same key."""

from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from telemetry.simulate.noise import LONGEST_WINDOW, TickNoise, mixed, smooth, stream, windows
from telemetry.simulate.plan import Noise
from telemetry.simulate.script import conditions, script_of
from telemetry.simulate.shard import played_steps, start_clock
from telemetry.simulate.step_model import FIRST_STEPS
from telemetry.simulate.timeline import steps_under
from tests.telemetry.simulate.played import EPOCH, SMALL, plan_of

KEY = stream(7, "run", "test")


def test_it_is_standard_normal() -> None:
    noise = windows("normal", mixed(KEY, np.arange(5_000)), 8)

    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs((np.abs(noise) > 1.96).mean() - 0.05) < 0.005


def test_neighbouring_questions_have_unrelated_answers() -> None:
    noise = windows("normal", mixed(KEY, np.arange(5_000)), 8)

    assert abs(np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1]) < 0.02
    assert np.abs(np.corrcoef(noise.T) - np.eye(8)).max() < 0.06


def test_streams_and_seeds_are_unrelated() -> None:
    n = np.arange(5_000)
    noise = [
        windows("normal", mixed(key, n), 1)[:, 0]
        for key in (
            KEY,
            stream(8, "run", "test"),
            stream(7, "run", "tset"),
            stream(7, "runt", "est"),
        )
    ]

    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.05


def test_smooth_noise_changes_slowly_with_the_same_deviation_everywhere() -> None:
    noise = smooth(KEY, np.arange(64_000), every=32, width=4)
    by_place = noise.reshape(-1, 32, 4).std(axis=(0, 2))

    assert np.abs(by_place - 1).max() < 0.08
    assert np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1] > 0.95
    assert abs(np.corrcoef(noise[64:, 0], noise[:-64, 0])[0, 1]) < 0.05


def test_what_is_asked_next_to_it_does_not_matter() -> None:
    ticks, nodes = np.arange(1_000, 1_100), np.arange(6)
    whole, part = TickNoise(KEY, ticks, nodes), TickNoise(KEY, ticks[40:50], nodes[2:4])

    for _ in range(2):
        np.testing.assert_array_equal(whole.normal(16)[40:50, 2:4], part.normal(16))
    np.testing.assert_array_equal(whole.latency(16)[40:50, 2:4], part.latency(16))
    np.testing.assert_array_equal(whole.drift(every=20)[40:50, 2:4], part.drift(every=20))


def test_each_check_is_its_own_random_stream() -> None:
    noise = TickNoise(KEY, np.arange(2_000), np.arange(2))

    first, second = noise.normal(4).ravel(), noise.normal(4).ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


# A width just above LONGEST_WINDOW, and the next such width.
AT_THE_EDGE = (LONGEST_WINDOW, LONGEST_WINDOW + 1, 2 * LONGEST_WINDOW + 1)


@given(width=st.integers(1, 40_000), n=st.integers(0, 2**62))
@example(width=AT_THE_EDGE[0], n=0)
@example(width=AT_THE_EDGE[1], n=0)
@example(width=AT_THE_EDGE[2], n=0)
def test_any_number_of_nodes_has_noise_of_its_own(width: int, n: int) -> None:
    hashes = mixed(KEY, np.array([n, n + 1]))
    noise = windows("normal", hashes, width)

    assert noise.shape == (2, width)
    assert noise.dtype == np.float32
    np.testing.assert_array_equal(noise, windows("normal", hashes, width))
    np.testing.assert_array_equal(noise[:1], windows("normal", hashes[:1], width))
    # More nodes change nothing for those that were there.
    np.testing.assert_array_equal(noise, windows("normal", hashes, width + 1)[:, :width])


def test_the_last_place_on_the_tape_has_a_widest_window() -> None:
    last = np.array([2**64 - 1], np.uint64)

    for width in AT_THE_EDGE:
        assert np.isfinite(windows("normal", last, width)).all()


def test_a_wide_window_does_not_repeat_itself() -> None:
    noise = windows("normal", mixed(KEY, np.arange(8)), 3 * LONGEST_WINDOW)
    pieces = noise.reshape(8, 3, LONGEST_WINDOW).transpose(1, 0, 2).reshape(3, -1)

    assert np.abs(np.corrcoef(pieces) - np.eye(3)).max() < 0.02
    assert np.abs(pieces.std(axis=1) - 1).max() < 0.02


@pytest.mark.parametrize("n_nodes", [1, 20_000, 25_000, 40_000])
def test_steps_of_a_run_of_any_size_can_be_played(n_nodes: int) -> None:
    script = script_of(
        plan_of(msgspec.structs.replace(SMALL, nodes=n_nodes, global_batch=2 * n_nodes))
    )
    now = conditions(script, ())

    rows = steps_under(script, now, first=7, n_steps=2, start_s=EPOCH)

    assert rows.compute_s.shape == (2, n_nodes)
    assert (rows.wait_s >= 0).all()
    again = steps_under(script, now, first=8, n_steps=1, start_s=EPOCH)
    np.testing.assert_array_equal(rows.compute_s[1:], again.compute_s)


@pytest.mark.parametrize("tail", ["normal", "lognormal", "stalls"])
def test_steps_scatter_as_the_scenario_states(
    tail: Literal["normal", "lognormal", "stalls"],
) -> None:
    noise = Noise(measured=False, step_cv=0.2, tail=tail)
    plan = msgspec.structs.replace(plan_of(SMALL), noise=noise)
    [healthy], [noisy] = (
        [played_steps(each, start_clock(each), EPOCH + 1800)] for each in (plan_of(SMALL), plan)
    )

    ratio = noisy.step_s[:1900] / healthy.step_s[:1900]
    assert len(ratio) == 1900
    assert ratio.std() / ratio.mean() == pytest.approx(0.2, rel=0.35)
    skew = ((ratio - ratio.mean()) ** 3).mean() / ratio.std() ** 3
    low, high = {"normal": (-0.3, 0.3), "lognormal": (0.4, 0.9), "stalls": (5, 30)}[tail]
    assert low < skew < high


def test_a_stall_makes_the_others_wait_for_one_worker() -> None:
    noise = Noise(measured=False, step_cv=0.3, tail="stalls")
    plan = msgspec.structs.replace(plan_of(SMALL), noise=noise)
    steps = played_steps(plan, start_clock(plan), EPOCH + 600)[len(FIRST_STEPS) :]

    longest = steps.phases["compute_s"][steps.step_s > 1.5 * np.median(steps.step_s)]
    assert len(longest) > 5
    assert (np.sort(longest, axis=1)[:, -2] < 0.8 * longest.max(axis=1)).all()


def test_runs_of_one_configuration_differ_in_pace() -> None:
    noise = Noise(measured=False, run_to_run_cv=0.05)
    paces = []
    for seed in range(40):
        plan = msgspec.structs.replace(plan_of(SMALL, seed=seed), noise=noise)
        paces.append(script_of(plan).run_pace)

    assert np.std(paces) == pytest.approx(0.05, rel=0.4)
    assert script_of(plan_of(SMALL)).run_pace == 1
