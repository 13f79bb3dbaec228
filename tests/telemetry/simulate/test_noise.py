"""Noise can be looked up anywhere, looks random, and is the same for the same question."""

import numpy as np

from telemetry.simulate.noise import TickNoise, mixed, smooth, stream, windows

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


def test_what_is_asked_beside_it_does_not_matter() -> None:
    ticks, nodes = np.arange(1_000, 1_100), np.arange(6)
    whole, part = TickNoise(KEY, ticks, nodes), TickNoise(KEY, ticks[40:50], nodes[2:4])

    for _ in range(2):
        np.testing.assert_array_equal(whole.normal(16)[40:50, 2:4], part.normal(16))
    np.testing.assert_array_equal(whole.latency(16)[40:50, 2:4], part.latency(16))
    np.testing.assert_array_equal(whole.drift(every=20)[40:50, 2:4], part.drift(every=20))


def test_each_look_is_a_stream_of_its_own() -> None:
    noise = TickNoise(KEY, np.arange(2_000), np.arange(2))

    first, second = noise.normal(4).ravel(), noise.normal(4).ravel()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
