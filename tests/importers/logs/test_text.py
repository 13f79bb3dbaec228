"""Lines changed by launchers, terminals and disks: each step once."""

import gzip
import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from importers.logs import LogContext, LogReader, read_logs
from importers.logs.envelopes import MAX_LINE_BYTES, lines_of, prefix_of
from importers.logs.records import StepRecord
from importers.logs.steps import LineSteps
from tests.importers.logs.log_lines import (
    BEGAN_S,
    at,
    bar,
    megatron,
    neuronx,
    read,
    steps_of,
    trainer,
)

PREFIXES = (
    "[rank3]: ",
    "[default3]:",
    "[3]: ",
    "3: ",
    "  3: ",
    "[1,3]<stdout>:",
    "rank 3: ",
    "[pod/llama-worker-3/pytorch] [rank3]: ",
)
TIMES = (
    "2026-05-01T12:00:07.123Z stdout F ",
    "2026-05-01T14:00:07.123456789+02:00 ",
    "2026-05-01 12:00:07,123 ",
    "[2026-05-01 12:00:07.123] ",
    "2026-05-01 12:00:07.123 - INFO - ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_rank_before_the_line_is_known(prefix: str) -> None:
    found = prefix_of(f"{prefix}{neuronx(1)}", year=2026)

    assert found.rank == 3
    assert steps_of(f"{prefix}{neuronx(1)}").step.tolist() == [1]


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: "])
@pytest.mark.parametrize("time", TIMES)
def test_a_time_before_the_line_is_known(time: str, prefix: str) -> None:
    assert prefix_of(f"{prefix}{time}x", year=2026).at_s == pytest.approx(BEGAN_S + 7.123)


def test_a_time_with_its_zone_is_believed_before_one_without() -> None:
    text = f"2026-05-01T12:00:07Z stdout F 2026-05-01 15:00:07,000 {neuronx(1)}"

    assert prefix_of(text, year=2026, utc_offset_s=7_200).at_s == BEGAN_S + 7


def test_syslog_and_the_kernel_leave_out_the_year() -> None:
    assert prefix_of("May  1 12:00:07 host kernel: x", year=2026).at_s == BEGAN_S + 7
    assert prefix_of("[Fri May  1 12:00:07 2026] x", year=1999).at_s == BEGAN_S + 7


def test_times_without_a_zone_may_be_of_another() -> None:
    log = read(f"{at(0)} {neuronx(1)}", utc_offset_s=-3_600)

    assert log.steps.columns()["at_s"].tolist() == [BEGAN_S + 3_600]


@pytest.mark.parametrize("text", ["2026-13-45 99:99:99 x", "0001-01-01 00:00:00 x", "9999-12-31"])
def test_a_date_that_no_calendar_has_is_none(text: str) -> None:
    assert np.isnan(prefix_of(text, year=2026).at_s)


def test_ranks_that_repeat_a_line_do_not_train_it_again() -> None:
    lines = [
        f"[rank{rank}]: {at(10.0 * step + rank / 10)} {neuronx(step)}"
        for step in range(1, 6)
        for rank in range(8)
    ]
    log = read("\n".join(lines))

    assert len(log.steps) == 5
    assert (log.steps.n_lines, log.steps.n_retrained) == (40, 0)
    # The first line is nearest to the step's end.
    assert log.steps.columns()["at_s"][0] == BEGAN_S + 10


def test_a_step_trained_again_after_a_restart_counts_once_and_is_reported() -> None:
    lines = [f"{at(10.0 * i)} {neuronx(i, loss=5.0)}" for i in range(1, 11)]
    lines += [f"{at(900 + 10.0 * i)} {neuronx(i, loss=4.0)}" for i in range(6, 13)]
    log = read("\n".join(lines))
    columns = log.steps.columns()

    assert columns["step"].tolist() == list(range(1, 13))
    assert log.steps.n_retrained == 5
    assert columns["loss"].tolist() == [5.0] * 5 + [4.0] * 7
    assert columns["at_s"][5] == BEGAN_S + 960


def test_colours_carriage_returns_and_windows_line_ends_are_seen_through() -> None:
    coloured = f"\x1b[1;32m{neuronx(1)}\x1b[0m\r\n\x1b]0;title\x07\x1b[2K{neuronx(2)}\r\n"

    assert steps_of(coloured).step.tolist() == [1, 2]


def test_a_bar_that_rewrites_its_line_for_an_hour_is_one_line_of_many_states() -> None:
    text = "\r".join(f"{bar(n)}{trainer(3 - n / 400) if n % 10 == 0 else ''}" for n in range(400))
    log = read(text)

    assert log.n_lines == 1
    assert log.steps.columns()["step"].tolist() == list(range(0, 400, 10))


def test_bytes_that_are_no_text_spoil_only_what_they_are_in() -> None:
    data = b"\xff\xfe step\x00\x80\n" + neuronx(1).encode() + b" \xc3\x28\n\x00\x00\n"
    log = read(data)

    assert log.steps.columns()["step"].tolist() == [1]
    assert log.n_damaged == 0


def test_a_line_that_is_cut_off_is_counted_with_its_number() -> None:
    log = read(f"hello\n{neuronx(1)}\n[rank0]: step 2 step_time 9.")

    assert (log.n_lines, log.n_other, log.n_damaged) == (3, 1, 1)
    assert [(each.number, each.text) for each in log.damaged] == [
        (3, "[rank0]: step 2 step_time 9.")
    ]
    assert [(each.number, each.text) for each in log.others] == [(1, "hello")]


def test_a_huge_line_is_read_in_part_and_the_next_one_whole() -> None:
    huge = b"x" * (3 * MAX_LINE_BYTES)
    lines = list(lines_of(io.BytesIO(huge + b"\n" + neuronx(1).encode() + b"\n")))

    assert [(number, len(line), whole) for number, line, whole in lines] == [
        (1, MAX_LINE_BYTES, False),
        (2, len(neuronx(1)) + 1, True),
    ]
    assert len(read(huge + b"\n" + neuronx(1).encode()).steps) == 1


def test_gzipped_logs_are_read_whatever_their_name(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(gzip.compress(f"{neuronx(1)}\n".encode()))

    assert len(read_logs([path], LogContext()).steps) == 1


def test_a_gzipped_log_that_breaks_off_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    text = "".join(f"{neuronx(step, loss=step / 7)}\n" for step in range(6_000)).encode()
    path.write_bytes(gzip.compress(text)[:-2_000])
    log = read_logs([path], LogContext())

    assert 1_000 < len(log.steps) < 6_000
    assert log.n_damaged == 1


def test_several_files_are_one_log(tmp_path: Path) -> None:
    for rank in range(3):
        lines = [f"{neuronx(step)}\n" for step in (1, 2, 3 + rank)]
        (tmp_path / f"rank{rank}.log").write_text("".join(lines))
    log = read_logs(sorted(tmp_path.iterdir()), LogContext())

    assert log.steps.columns()["step"].tolist() == [1, 2, 3, 4, 5]


def test_memory_does_not_grow_with_lines() -> None:
    def lines(n: int) -> LogReader:
        reading = LogReader(LogContext())
        reported = f"[rank1]: {megatron(5)}\n".encode()
        reading.read((i, reported if i % 10 == 0 else b"other words\n", True) for i in range(n))
        return reading

    lines(1_000)
    tracemalloc.start()
    reading = lines(8_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert reading.finish().n_lines == 8_000
    assert peak < 200_000


def test_more_steps_than_can_be_held_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importers.logs.steps.MAX_STEPS", 2)
    gathered = LineSteps()
    gathered.add(StepRecord(1))
    gathered.add(StepRecord(2))
    gathered.add(StepRecord(2))

    with pytest.raises(ValueError, match="FILE: has more than 2 steps; split it"):
        gathered.add(StepRecord(3))


def test_similar_text_is_of_no_known_kind() -> None:
    lines = ["{'train_batch_size': 8}", "loss is logged at 5 it/s", "Fetching: 50%|█| 1/2 [00:01<"]
    log = read("\n".join(lines))

    assert (log.n_other, log.n_damaged) == (3, 0)
