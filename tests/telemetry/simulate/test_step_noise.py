"""Noise as measured, and recorded step times as a run's pace."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench import noise as bench_noise
from bench.noise import figures
from drills.scenario import load_scenario
from telemetry.blocks import FloatArray
from telemetry.errors import FieldError
from telemetry.simulate.inputs import FULL
from telemetry.simulate.noise import stream
from telemetry.simulate.plan import Noise, Plan
from telemetry.simulate.script import script_of
from telemetry.simulate.shard import play, played_steps, start_clock
from telemetry.simulate.step_noise import BLOCK, RESUME_STEPS, StepNoise
from tests.telemetry.simulate.played import EPOCH, SMALL, VISION, plan_of

MEASURED = Noise(measured=True)
RUN = msgspec.structs.replace(SMALL, nodes=8, global_batch=16384)
SCENARIO = """
name = "paced"
duration_s = 600
[noise]
recorded = "times.csv"
[[run]]
name = "r"
model = "bert-large"
instance = "trn1.2xlarge"
nodes = 2
seq_len = 128
global_batch = 4096
compile_s = 0
"""


def noise_of(seed: int, *, noise: Noise = MEASURED, step_s: float = 10.0) -> StepNoise:
    return StepNoise(noise, key=lambda name: stream(seed, "run", name), step_s=step_s)


def with_noise(noise: Noise = MEASURED, *, seed: int = 7) -> Plan:
    return msgspec.structs.replace(plan_of(RUN, seed=seed), noise=noise, inputs=FULL)


def written(folder: Path, step_s: FloatArray | list[object], *, head: str = "step,step_s") -> Path:
    path = folder / "times.csv"
    path.write_text("\n".join([head, *(f"{i},{s}" for i, s in enumerate(step_s))]))
    return path


def test_any_step_is_computed_without_those_before() -> None:
    for seed in range(20):
        noise = noise_of(seed)
        whole = noise.of(0, 3 * BLOCK)
        for first, n in ((0, 1), (BLOCK - 1, 2), (BLOCK + 7, 400), (3 * BLOCK - 1, 1)):
            for all_, some in zip(whole, noise_of(seed).of(first, n), strict=True):
                np.testing.assert_array_equal(all_[first : first + n], some)


def test_runs_draw_different_parameters_and_repeat_them() -> None:
    scatter = [noise_of(seed).scatter for seed in range(200)]

    assert noise_of(3).scatter == scatter[3]
    # 1.3 % times 10 to the power of -0.78, of 10 s; by run a factor of 0.41 to 2.43, and more.
    assert 0.0018 < float(np.median(scatter)) < 0.0027
    assert 3 < np.percentile(scatter, 90) / np.percentile(scatter, 10) < 12
    short = [noise_of(seed, step_s=1.0).scatter for seed in range(200)]
    assert float(np.median(short)) > 4 * float(np.median(scatter))


def test_runs_vary_as_public_runs_do() -> None:
    """The middle of 60 runs is near the middle of the public ones, and their ranges overlap."""
    drawn = bench_noise.percentiles([*map(figures, bench_noise.simulated(60, 1000))])

    for name, (low, middle, high) in bench_noise.MEASURED.items():
        spread = max(middle - low, high - middle)
        assert abs(drawn[name][1] - middle) < 0.6 * spread, name
        assert drawn[name][0] < middle, name
        assert drawn[name][2] > middle + 0.1 * (high - middle), name
    # Heavy tails and levels that wander: none of it is in noise of today.
    assert drawn["degrees of freedom"][1] < 4
    assert drawn["variance of means of 20 steps, over independent"][1] > 3


def test_the_first_steps_after_a_start_and_after_a_pause_are_longer() -> None:
    noise = noise_of(1)
    after_start = noise.since_start(500, np.arange(4))
    after_pause_s = noise.resuming_s(np.arange(-2, RESUME_STEPS + 1))

    assert after_start[0] > 1.05
    assert after_start[1] > 1.02
    assert after_start[2] == pytest.approx(1, abs=0.06)
    np.testing.assert_array_equal(after_pause_s[:2], 0)
    assert 0.02 < after_pause_s[2] < 1
    assert after_pause_s[-1] == 0


def test_a_checkpoint_makes_the_next_step_longer() -> None:
    run = msgspec.structs.replace(RUN, checkpoint_every_s=60)
    often, never = (msgspec.structs.replace(with_noise(), run=each) for each in (run, RUN))
    paused, plain = (played_steps(p, start_clock(p), EPOCH + 600) for p in (often, never))
    after = np.flatnonzero(paused.phases["checkpoint_s"].any(axis=1)) + 1
    other_s = paused.phases["other_s"][: len(paused)].min(axis=1)
    usual_s = plain.phases["other_s"].min(axis=1)

    assert len(after) > 5
    after = after[after < len(paused)]
    assert (other_s[after] - usual_s[after] > 0.02).all()


def test_hardware_does_less_per_second_while_a_step_is_held_up() -> None:
    """The same work in more time: utilization, traffic and power fall, none of them rises."""
    plan = with_noise(seed=5)
    played = play(plan, plan.shards[0], start_clock(plan), EPOCH + 3600)
    late_s = played.steps.phases["other_s"].max(axis=1)
    at = np.flatnonzero(late_s > 2.5)
    # At least one whole second lies within what the late worker loses.
    assert len(at) > 0
    worker = played.steps.phases["other_s"][at[0]].argmax()
    ended_s = played.steps.ended_at_s[at[0]] - played.steps.phases["transfer_s"][at[0]].max()
    row = int(ended_s) - EPOCH - 1
    for name in (
        "core_utilization_ratio",
        "hbm_bandwidth_bytes_per_s",
        "core_flops_per_s",
        "device_power_ratio",
    ):
        values = played.span.values[name][:, worker].mean(axis=1)
        assert values[row] < 0.7 * np.median(values[100:]), name


@pytest.mark.parametrize("busy", [True, False])
def test_a_long_step_lowers_what_hardware_does_per_second(*, busy: bool) -> None:
    inputs = msgspec.structs.replace(FULL, busy_while_waiting=busy)
    plan = msgspec.structs.replace(with_noise(seed=2), run=VISION, inputs=inputs)
    played = play(plan, plan.shards[0], start_clock(plan), EPOCH + 3600)
    steps = played.steps[20:]
    is_long = steps.step_s > 1.05 * np.median(steps.step_s)

    def during(name: str) -> FloatArray:
        """Mean of a metric over the seconds of each step."""
        total = np.nancumsum(np.pad(played.span.values[name].mean(axis=(1, 2)), (1, 0)))
        began, ended = (
            np.interp(at_s - EPOCH + 1, np.arange(len(total)), total)
            for at_s in (steps.ended_at_s - steps.step_s, steps.ended_at_s)
        )
        return np.asarray((ended - began) / steps.step_s)

    assert is_long.sum() > 5
    for name, most in (
        ("hbm_bandwidth_bytes_per_s", 0.97),
        ("core_flops_per_s", 0.97),
        ("core_utilization_ratio", 1.002),
        ("device_power_ratio", 1.0),
    ):
        values = during(name)
        assert values[is_long].mean() < most * np.median(values), name


def test_nodes_differ_for_good_as_measured() -> None:
    spreads = []
    for seed in range(30):
        plan = with_noise(seed=seed)
        pace = np.median(
            played_steps(plan, start_clock(plan), EPOCH + 600).phases["compute_s"][5:], axis=0
        )
        spreads.append(pace.std() / pace.mean())

    assert 0.004 < float(np.median(spreads)) < 0.0075


def test_recorded_times_are_the_pace_of_all_workers(tmp_path: Path) -> None:
    seconds = np.tile([3.0, 3.0, 3.0, 6.0, 3.0, 3.3], 20)
    # A process begins with long steps; a simulated one does so by itself.
    written(tmp_path, np.concatenate([[40.0, 5.0], seconds]))
    [plan] = load_scenario(SCENARIO, folder=tmp_path).plans(epoch_s=EPOCH)
    steps = played_steps(plan, start_clock(plan), EPOCH + 600)[2:]
    step_s = steps.step_s / np.median(steps.step_s)

    assert np.mean(step_s > 1.8) == pytest.approx(1 / 6, abs=0.01)
    assert np.mean((step_s > 1.05) & (step_s < 1.2)) == pytest.approx(1 / 6, abs=0.01)
    assert step_s.max() < 2.2
    compute_s = steps.phases["compute_s"] / np.median(steps.phases["compute_s"], axis=0)
    assert (compute_s[step_s > 1.8].min(axis=1) > 1.8).all()


def test_a_recording_starts_at_a_place_of_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, 3 + np.arange(500) / 5000)
    noise = Noise(recorded=str(path))
    first = {noise_of(seed, noise=noise).of(0, 1).factor[0] for seed in range(8)}
    whole = noise_of(1, noise=noise).of(0, 1000).factor

    assert len(first) > 4
    # It has no seam: it is played backwards when it is over.
    assert np.abs(np.diff(whole)).max() < 0.0002
    assert whole.max() - whole.min() > 0.03


@pytest.mark.parametrize(
    ("step_s", "head", "said"),
    [
        ([1.0, 2.0], "step,seconds", "has no column step_s; name it in the first line"),
        ([1.0, "nan", 2.0], "step,step_s", "line 3: step_s is 'nan'; give seconds > 0"),
        ([1.0, "inf", 2.0], "step,step_s", "line 3: step_s is 'inf'; give seconds > 0"),
        ([1.0, "x", 2.0], "step,step_s", "line 3: step_s is 'x'; give seconds > 0"),
        ([1.0, 0, 2.0], "step,step_s", "line 3: step_s is '0'; give seconds > 0"),
        ([1.0, -1, 2.0], "step,step_s", "line 3: step_s is '-1'; give seconds > 0"),
        ([], "step,step_s", "has 0 step times; give 2 or more"),
        ([1.0], "step,step_s", "has 1 step times; give 2 or more"),
        ([2.0, 1.0, 1.01, 3.0, 1.02], "step", "has no column step_s"),
    ],
)
def test_an_unusable_recording_is_refused(
    tmp_path: Path, step_s: list[object], head: str, said: str
) -> None:
    written(tmp_path, step_s, head=head)

    with pytest.raises(FieldError) as refused:
        load_scenario(SCENARIO, folder=tmp_path)
    assert refused.value.field == "noise.recorded"
    assert said in str(refused.value)
    assert "times.csv" in str(refused.value)


def test_a_recording_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"noise\.recorded: .*cannot be read .*give a CSV file"):
        load_scenario(SCENARIO, folder=tmp_path)
    (tmp_path / "times.csv").write_bytes(b"step,step_s\n1,\xff\n")
    with pytest.raises(FieldError, match=r"noise\.recorded: .*is no CSV text"):
        load_scenario(SCENARIO, folder=tmp_path)


def test_a_measured_run_needs_no_recording() -> None:
    text = SCENARIO.replace('recorded = "times.csv"', "measured = true")

    assert load_scenario(text).noise == MEASURED
    [plan] = load_scenario(text).plans(epoch_s=EPOCH)
    assert script_of(plan).step_noise is not None
