"""Small operator files of each format, with known answers."""

import io
from pathlib import Path

from telemetry.checks.operator_readers import read_operators
from telemetry.checks.operators import OperatorList
from telemetry.checks.support import OperatorJudgement, judge, published

DATA = Path(__file__).parent / "data"


def read(given: str | bytes) -> OperatorList:
    """Read text or bytes."""
    return read_operators(io.BytesIO(given if isinstance(given, bytes) else given.encode()))


def from_file(name: str) -> OperatorList:
    """Read one of the small files."""
    return read((DATA / name).read_bytes())


def judged(reading: OperatorList) -> dict[str, OperatorJudgement]:
    """Judge by what is published, and by the reading's own report."""
    return {each.name: each for each in judge(reading, published(), reading.report)}
