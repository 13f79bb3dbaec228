"""Samples of data/families.toml: what each family of step lines says."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from importers.logs.families import FAMILIES
from tests.importers.logs.log_lines import BEGAN_S, NAN, at, neuronx, nxdt, read, steps_of

TABLE = Path(__file__).parent / "data" / "families.toml"
SAMPLES = {
    sample["name"]: sample for sample in tomllib.loads(TABLE.read_text(encoding="utf-8"))["sample"]
}
# Families whose samples are in test_formats.py.
ELSEWHERE = {"Megatron", "NxDT", "Optimum-Neuron"}
FIGURES = ("step_s", "seq_per_s", "tokens", "loss", "grad_norm", "learning_rate")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_of_each_family_is_read(name: str) -> None:
    text, last = SAMPLES[name]["text"], SAMPLES[name]["last"]
    log, steps = read(text), steps_of(text)

    assert (log.family, steps.step.tolist()) == (last["family"], last["step"])
    for field in FIGURES:
        found = getattr(steps, field)[-1]
        np.testing.assert_allclose(found, last.get(field, NAN), rtol=1e-9, err_msg=field)
    np.testing.assert_allclose(steps.at_s[-1] - BEGAN_S, last.get("at_s", NAN), atol=1e-3)
    np.testing.assert_allclose(steps.global_batch, last.get("global_batch", NAN))
    assert (steps.how, log.n_damaged) == (last.get("how", "told"), 0)


def test_each_family_has_a_sample() -> None:
    assert {sample["last"]["family"] for sample in SAMPLES.values()} | ELSEWHERE == set(FAMILIES)


def slow_bar(*, s_per_step: int, rate: float) -> str:
    """Write a bar whose clock says one thing, and whose rate over the batch another."""
    states = [
        nxdt(
            n,
            clock=f"{n * s_per_step // 60}:{n * s_per_step % 60:02d}",
            extra=f", throughput={rate}",
        )
        for n in range(20, 25)
    ]
    return "\r".join(states).replace("18.94s/it", f"{s_per_step}.0s/it")


def test_a_bar_s_clock_counts_where_the_rate_contradicts_it() -> None:
    steps = steps_of(slow_bar(s_per_step=25, rate=8.68))

    assert steps.step_s.tolist() == [25.0] * 5
    assert steps.how == "bar"
    assert [name for name, _ in steps.clocks] == ["batch", "bar"]
    np.testing.assert_allclose([step_s for _, step_s in steps.clocks], [1024 / 8.68, 25.0])
    np.testing.assert_allclose(steps.seq_per_s, 1024 / 25.0)


def test_a_rate_that_agrees_with_the_bar_is_finer() -> None:
    steps = steps_of(slow_bar(s_per_step=25, rate=40.5))

    np.testing.assert_allclose(steps.step_s, 1024 / 40.5)
    assert (steps.how, steps.clocks) == ("batch", ())


def test_fairseq_s_clock_counts_where_its_rate_contradicts_it() -> None:
    sample = SAMPLES["fairseq"]["text"].replace("wps=20480.0", "wps=409.6")
    steps = steps_of(sample)

    np.testing.assert_array_equal(steps.step_s, [np.nan, 0.5])
    assert [name for name, _ in steps.clocks] == ["batch", "bar"]


def test_a_logged_step_time_stays_and_the_contradiction_is_said() -> None:
    steps = steps_of("\n".join(f"{at(30.0 * n)} {neuronx(n)}" for n in range(5)))

    assert steps.step_s.tolist() == [9.2] * 5
    assert steps.clocks == (("clock", 30.0), ("told", 9.2))


@pytest.mark.parametrize("step_s", [0.55, 1.37, 2.6, 7.9])
def test_a_clock_of_whole_seconds_gives_the_time_of_a_step(step_s: float) -> None:
    lines = [
        f"{at(int(step_s * n + 0.4))[:-4]} | step {n} | loss 1 | tps 9 | num_label_tokens 2"
        for n in range(60)
    ]

    np.testing.assert_allclose(np.nanmedian(steps_of("\n".join(lines)).step_s), step_s, rtol=2e-3)


@pytest.mark.parametrize(
    "times",
    [
        [9.2, 18.4, 27.6, 1_036.8, 1_046.0],
        [46.0, 46.0, 46.0, 46.0, 46.0, 92.0, 92.0, 92.0, 92.0, 92.0],
    ],
    ids=["a pause", "lines in batches"],
)
def test_pauses_and_lines_written_in_batches_contradict_nothing(times: list[float]) -> None:
    lines = [f"{at(second)} {neuronx(n)}" for n, second in enumerate(times)]

    assert steps_of("\n".join(lines)).clocks == ()


def test_a_bar_that_counts_batches_of_accumulated_gradients_has_the_time_of_a_step() -> None:
    (state,) = [nxdt(9, clock="3:00")]
    steps = steps_of(state.replace("10/1000", "40/4000").replace("18.94s/it", "4.50s/it"))

    assert steps.step_s.tolist() == [18.0]
