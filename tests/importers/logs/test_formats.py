"""Step lines of the four log formats, in our units."""

import numpy as np
import pytest

from tests.importers.logs.log_lines import (
    BEGAN_S,
    at,
    bar,
    megatron,
    neuronx,
    nxdt,
    read,
    steps_of,
    trainer,
    zero1,
)


def test_neuronx_distributed_reports_all_of_a_step() -> None:
    text = f"{neuronx(11)}\n{neuronx(12, step_s=9.5, loss=7.5)}\n"
    steps = steps_of(text, global_batch=512, seq_len=4096)

    assert steps.step.tolist() == [11, 12]
    assert steps.step_s.tolist() == [9.2, 9.5]
    assert steps.loss.tolist() == [8.0, 7.5]
    assert steps.grad_norm.tolist() == [1.25, 1.25]
    assert steps.tokens.tolist() == [512 * 4096] * 2
    assert (steps.how, steps.is_dated) == ("told", False)


def test_people_know_the_batch_better_than_a_smoothed_rate() -> None:
    steps = steps_of(neuronx(1), global_batch=512, seq_len=4096)

    assert steps.tokens.tolist() == [512 * 4096]
    assert steps.seq_per_s.tolist() == [512 / 9.2]


@pytest.mark.parametrize("window", [1, 10, 1_000])
def test_an_averaged_rate_gives_the_batch_that_explains_it(window: int) -> None:
    took_s = [90.0, *(30.0 + n % 3 for n in range(29))]
    mean_s = [np.mean(took_s[max(0, n + 1 - window) : n + 1]) for n in range(30)]
    lines = [
        neuronx(n + 1, step_s=took_s[n], rate=round(float(512 / mean_s[n]), 4)) for n in range(30)
    ]
    steps = steps_of("\n".join(lines), seq_len=4096)

    assert steps.global_batch == 512
    assert steps.tokens.sum() == 30 * 512 * 4096
    np.testing.assert_allclose(steps.seq_per_s, [512 / each for each in took_s])
    assert steps.rate_doubt == ""


def test_an_averaged_rate_that_nothing_explains_is_no_rate_of_now() -> None:
    lines = [neuronx(n, step_s=9.0 + n, rate=20.0 + 3 * n) for n in range(1, 9)]
    steps = steps_of("\n".join(lines), seq_len=4096)

    assert np.isnan(steps.seq_per_s).all()
    assert np.isnan(steps.tokens).all()
    assert steps.rate_doubt == "mean"


def test_engines_that_log_different_rates_for_a_step_have_none() -> None:
    head = "[2026-05-01 12:00:{:02d},250] [INFO] [timer.py:260:stop] epoch=0/micro_step={}/"
    text = "".join(
        f"{head.format(2 * n, n)}global_step={n}, RunningAvgSamplesPerSec=9.5, "
        f"CurrSamplesPerSec={rate}, MemAllocated=9.1GB\n"
        for n in range(1, 20)
        for rate in (12.5, 62.5)
    )
    steps = steps_of(text)

    assert np.isnan(steps.seq_per_s).all()
    assert steps.rate_doubt == "disputed"
    np.testing.assert_allclose(steps.step_s[1:], 2.0)


def test_the_line_times_of_whole_seconds_are_read_over_a_minute() -> None:
    text = "\n".join(f"{at(2.6 * n)[:-4]} - step: {n}  loss: 2.5  tps: 9" for n in range(60))

    np.testing.assert_allclose(np.nanmedian(steps_of(text).step_s), 2.6, rtol=0.02)


def test_zero1_has_times_and_no_step_time() -> None:
    text = "\n".join(zero1(step, seconds=8.0 * step) for step in (10, 20, 30))
    steps = steps_of(text)

    assert steps.at_s.tolist() == [BEGAN_S + 80, BEGAN_S + 160, BEGAN_S + 240]
    np.testing.assert_array_equal(steps.step_s, [np.nan, 8.0, 8.0])
    assert steps.how == "clock"
    assert steps.learning_rate.tolist() == [1e-4] * 3
    assert steps.weight.tolist() == [10, 10, 10]


def test_the_averaged_rate_of_zero1_is_no_step_time() -> None:
    text = "\n".join(zero1(n, seconds=8.0 * n, rate=50.0) for n in (10, 11, 12))
    steps = steps_of(text, global_batch=512)

    np.testing.assert_array_equal(steps.step_s, [np.nan, 8.0, 8.0])
    np.testing.assert_array_equal(steps.seq_per_s, [np.nan, 64.0, 64.0])
    assert steps.how == "clock"


def test_megatron_counts_milliseconds_and_reports_its_batch() -> None:
    steps = steps_of(f"{megatron(64)}\n{megatron(74, ms=7000)}\n", seq_len=2048)

    assert steps.step.tolist() == [64, 74]
    assert steps.step_s.tolist() == [7.3131, 7.0]
    assert steps.tokens.tolist() == [256 * 2048] * 2
    assert steps.global_batch == 256
    assert steps.loss.tolist() == [6.79, 6.79]
    # 140 TFLOP/s per device is no number of sequences.
    np.testing.assert_allclose(steps.seq_per_s, 256 / steps.step_s)


def test_megatron_may_say_a_date_and_count_seconds() -> None:
    line = megatron(64).replace("(ms): 7313.1", "(s): 7.25")
    steps = steps_of(f" [2026-05-01 12:00:00.500000]{line}")

    assert steps.step_s.tolist() == [7.25]
    assert steps.at_s.tolist() == [BEGAN_S + 0.5]


def test_nxdt_reports_sequences_per_second_and_its_peak_is_left_alone() -> None:
    extra = ", throughput=54.1, throughput_peak=99.0"
    steps = steps_of("\r".join([nxdt(29, extra=extra), nxdt(30, clock="12:53", extra=extra)]))

    assert steps.step.tolist() == [29, 30]
    assert steps.seq_per_s.tolist() == [54.1, 54.1]
    assert steps.global_batch == 1024
    np.testing.assert_allclose(steps.step_s, 1024 / 54.1)
    assert steps.loss.tolist() == [10.4, 10.4]


def test_nxdt_of_older_releases_reports_its_iteration_time() -> None:
    steps = steps_of(nxdt(29, extra=", iteration_time=18.5"))

    assert steps.step_s.tolist() == [18.5]


def test_nxdt_without_rates_has_the_clock_of_its_bar() -> None:
    steps = steps_of("\r".join([nxdt(29, clock="9:00"), nxdt(30, clock="9:20")]))

    assert steps.step_s.tolist() == [18.94, 20.0]


def test_numbers_that_a_bar_rounds_are_not_believed() -> None:
    rounded = nxdt(100_001).replace("global_step=100001.0", "global_step=1e+5")
    rounded = rounded.replace("consumed_samples=102402048.0", "consumed_samples=1.02e+8")
    steps = steps_of("\n".join([nxdt(99_998), nxdt(99_999), rounded]))

    assert steps.step.tolist() == [99_998, 99_999, 100_001]
    assert steps.global_batch == 1024


def test_a_bar_that_restarts_each_epoch_continues_counting() -> None:
    bars = [
        f"Epoch {epoch}: 50%|█| {n}/100 [00:10<00:10, 2.50s/it, loss=3.2]"
        for epoch in (0, 1)
        for n in (50, 100)
    ]

    assert steps_of("\n".join(bars)).step.tolist() == [50, 100, 150, 200]


@pytest.mark.parametrize("label", ["Validation DataLoader 0: ", "Sanity Checking: "])
def test_bars_of_validation_are_no_steps(label: str) -> None:
    assert not read(nxdt(5).replace("Epoch 0: ", label)).family


def test_a_trainer_reports_its_step_by_the_bar_before_it() -> None:
    text = "\r".join(bar(n, clock=f"{n // 24:02d}:{n * 5 // 2 % 60:02d}") for n in range(11))
    steps = steps_of(f"{text}\n{trainer()}\n{bar(20, clock='00:50')}\n{trainer(2.25)}\n")

    assert steps.step.tolist() == [10, 20]
    assert steps.loss.tolist() == [2.5, 2.25]
    np.testing.assert_allclose(steps.step_s, [2.5, 2.5])


def test_bars_of_evaluation_do_not_move_the_step() -> None:
    evaluation = f"{bar(50, 125)}\n{{'eval_loss': 2.0, 'epoch': 0.1}}\n"
    steps = steps_of(f"{bar(10)}\n{evaluation}{trainer()}\n")

    assert steps.step.tolist() == [10]


def test_other_bars_do_not_move_the_step_either() -> None:
    loading = bar(2, 2, label="Loading checkpoint shards: ")

    assert steps_of(f"{loading}\n{bar(10)}\n{loading}\n{trainer()}").step.tolist() == [10]


def test_optimum_neuron_reports_tokens_and_step_time() -> None:
    more = {"train/tokens_per_sec": 16_000.0, "train/step_time": 1.25, "train/mfu": 31.0}
    steps = steps_of(f"{bar(10)}{trainer(**more)}\n")

    assert steps.step_s.tolist() == [1.25]
    assert steps.tokens.tolist() == [20_000.0]


def test_figures_may_come_in_a_dictionary_of_their_own() -> None:
    more = {"train/tokens_per_sec": 16_000.0, "train/step_time": 1.25}
    steps = steps_of(f"{bar(10)}\n{trainer()}\n{more}\n{bar(11)}\n{trainer(2.0)}\n{more}\n")

    assert steps.step.tolist() == [10, 11]
    assert steps.step_s.tolist() == [1.25, 1.25]


def test_dictionaries_may_number_themselves_or_write_figures_as_text() -> None:
    text = "{'loss': '2.5', 'step': '120', 'train/step_time': '1.5'}\n{\"loss\": 2, \"step\": 130}"
    steps = steps_of(text)

    assert steps.step.tolist() == [120, 130]
    assert steps.loss.tolist() == [2.5, 2.0]


def test_a_dictionary_may_have_its_number_before_it() -> None:
    text = "\n".join(
        f"Step {n}: {{'loss': {3 - n / 100}, 'steps_per_sec': 0.8}}" for n in (100, 150)
    )
    steps = steps_of(text)

    assert steps.step.tolist() == [100, 150]
    assert steps.step_s.tolist() == [1.25, 1.25]
    assert read(text).n_guessed == 0


def test_dictionaries_without_number_or_bar_are_counted() -> None:
    text = "\n".join(trainer(loss) for loss in (3.0, 2.0, 1.0))

    assert steps_of(text, log_every=10).step.tolist() == [10, 20, 30]
    assert read(text).n_guessed == 3


def test_ranks_that_all_log_are_counted_apart() -> None:
    text = "\n".join(f"[rank{rank}]: {trainer(loss)}" for loss in (3.0, 2.0) for rank in range(4))

    assert steps_of(text).step.tolist() == [1, 2]
    assert read(text).n_guessed == 2


def test_the_end_of_a_run_sums_it_up() -> None:
    log = read(
        "{'train_runtime': 1000.0, 'train_samples_per_second': 12.8, "
        "'train_steps_per_second': 0.4, 'train_loss': 1.2, 'epoch': 1.0}\n"
        "{'summary/total_steps': 400, 'summary/total_tokens_processed': 1638400}\n"
    )

    assert log.totals.runtime_s == 1000.0
    assert log.totals.global_batch == pytest.approx(32.0)
    assert (log.totals.n_steps, log.totals.n_tokens) == (400, 1_638_400)


def test_steps_between_far_numbers_were_trained_elsewhere() -> None:
    steps = steps_of("\n".join(megatron(n) for n in (10, 20, 30, 5_010, 5_020)))

    assert steps.weight.tolist() == [10] * 5


def test_the_family_with_most_steps_is_the_run() -> None:
    text = "\n".join([megatron(1), neuronx(1), neuronx(2), f"{at(0)} {neuronx(3)}"])
    log = read(text)

    assert log.family == "neuronx-distributed"
    assert len(log.steps) == 3
    assert log.understood == {"Megatron": 1, "neuronx-distributed": 3}


def test_megatrons_list_of_arguments_names_the_optimizer() -> None:
    arguments = "  optimizer ....................................... adam"

    assert read(f"{arguments}\n{megatron(1)}\n").optimizer == "adam"
    assert read(f"  optimizer_cpu_offload ........ False\n{megatron(1)}\n").optimizer == ""


def test_an_evaluation_in_a_logged_step_of_nanogpt_counts_once() -> None:
    # Every tenth step is logged; every hundredth has an evaluation of 30 s, the first compiles.
    own_s = {0: 600.0} | {n: 30.4 if n % 100 == 0 else 0.4 for n in range(10, 1001, 10)}
    steps = steps_of(
        "\n".join(f"iter {n}: loss 3.0, time {1e3 * s:.2f}ms, mfu 31.0%" for n, s in own_s.items())
    )

    assert float(np.median(steps.step_s)) == pytest.approx(0.4)
    assert (steps.step_s * steps.weight).sum() == pytest.approx(600 + 1000 * 0.4 + 10 * 30)
