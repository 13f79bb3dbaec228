"""Fixtures of tests of imports: a log as a file."""

from pathlib import Path

import pytest

from tests.importers.import_command import BROKEN, A, Write, dated
from tests.importers.logs.log_lines import call, done, hit, neuronx


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(*lines: str, name: str = "train.log") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return written


@pytest.fixture
def file(write: Write) -> Path:
    """A log of four ranks that compiles, trains ten steps, and breaks a device."""
    lines = [call(A, pid=1), done(A, seconds=60, pid=1), hit(A, seconds=61, pid=2)]
    lines += [
        f"[rank{rank}]: {now} {neuronx(step, step_s=10.0, loss=8.0 - step / 10)}"
        for step in range(1, 11)
        for rank in range(4)
        for now in [dated(100 + 10 * step)]
    ]
    return write(*lines, "saving", f"{dated(150)} {BROKEN}", "step 11 step_time")
