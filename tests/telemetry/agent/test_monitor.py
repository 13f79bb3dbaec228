"""Report sources: a supervised program, and lines that are no report."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telemetry.agent.clock import Clock
from telemetry.agent.program import read_options
from telemetry.agent.reports import Collector, Health, Line
from telemetry.agent.sources import Monitor

Run = Callable[[str], Monitor]
WITHIN_S = 60.0


@pytest.fixture
def run() -> Iterator[Run]:
    """Give a function that runs a shell's command as the monitor."""
    monitors: list[Monitor] = []

    def start(script: str) -> Monitor:
        command = f"sh -c '{script}'"
        monitors.append(Monitor(command=command, stdin=False, period_s=1.0))
        return monitors[-1]

    yield start
    for monitor in monitors:
        monitor.stop()


def heard(monitor: Monitor, n: int, *, hurry: float = 1.0) -> list[bytes]:
    """Listen until so many lines came; with ``hurry``, to a clock that runs faster."""
    began_s, found = time.monotonic(), list[bytes]()
    while len(found) < n:
        passed_s = time.monotonic() - began_s
        assert passed_s < WITHIN_S
        found += monitor.lines(passed_s * hurry, 0.05)
    return found


def test_only_what_may_be_a_report_is_one(run: Run) -> None:
    monitor = run('echo "Starting up"; echo "{\\"a\\": 1}"; echo "{broken"; echo "{}"; sleep 60')

    assert heard(monitor, 2) == [b'{"a": 1}', b"{}"]
    assert monitor.n_skipped == 2


def test_reports_over_several_lines_are_one_line_each(run: Run) -> None:
    printed = '{\\n  \\"a\\": [\\n    1\\n  ]\\n}\\n'
    monitor = run(f'printf "{printed}{printed}{{\\n  cut\\n{{}}\\n[\\n"; sleep 60')

    first, second, third = (json.loads(line) for line in heard(monitor, 3))

    assert (first, second, third) == ({"a": [1]}, {"a": [1]}, {})
    assert monitor.n_skipped == 3


def test_what_is_no_report_is_named_with_the_fix(run: Run) -> None:
    monitor = run('echo "["; echo "  {"; sleep 60')
    began_s = time.monotonic()
    while monitor.n_skipped < 2 and time.monotonic() - began_s < WITHIN_S:
        assert monitor.lines(0.0, 0.05) == []

    assert monitor.problem == "'{' is not a report; `jq -c .` writes one per line"


def test_a_program_that_ends_is_started_again_after_a_rest(run: Run) -> None:
    monitor = run('echo "{}"')

    assert heard(monitor, 3, hurry=20) == [b"{}"] * 3


def test_half_a_line_of_a_program_that_died_spoils_no_other(run: Run) -> None:
    monitor = run('echo "{}"; printf "{\\"half\\": "')

    assert heard(monitor, 3, hurry=20) == [b"{}"] * 3


def test_a_program_that_is_not_there_is_reported(run: Run) -> None:
    monitor = Monitor(command="/no/such/program", stdin=False, period_s=1.0)

    assert monitor.lines(0.0, 0.0) == []
    assert monitor.problem == "/no/such/program: No such file or directory"


def test_a_program_that_hangs_is_ended_with_all_it_started(run: Run) -> None:
    monitor = run('trap "" TERM; sleep 600 & echo "{}"; wait; wait')
    heard(monitor, 1)
    process = monitor._process
    assert process is not None

    monitor.stop()

    assert process.returncode is not None


def test_reports_that_piled_up_were_made_one_by_one(tmp_path: Path) -> None:
    recording = tmp_path / "three"
    recording.write_text("{}\n{}\n{}\n")
    arguments = ["--dry-run", "--command", f"cat {recording}", "--period", "5"]
    nowhere = ["--efa-sysfs", str(tmp_path / "no"), "--neuron-sysfs", str(tmp_path / "no")]
    collector = Collector(read_options([*arguments, *nowhere]), Clock(), Health())
    lines: list[Line] = []
    while len(lines) < 3:
        lines += list(collector.lines())
    collector.stop()

    first, second, third = (made.up_s for _, made, _ in lines[:3])
    assert (second - first, third - second) == pytest.approx((5.0, 5.0))
