"""Small files of each form, with the answers worked out by hand."""

import io
from pathlib import Path

from telemetry.support import Judgement, Reading, judge, published, read_operators

DATA = Path(__file__).parent / "data"


def read(given: str | bytes) -> Reading:
    """Read text, or bytes as they are."""
    return read_operators(io.BytesIO(given if isinstance(given, bytes) else given.encode()))


def from_file(name: str) -> Reading:
    """Read one of the small files."""
    return read((DATA / name).read_bytes())


def judged(reading: Reading) -> dict[str, Judgement]:
    """Judge by what is published, and by the reading's own report."""
    return {each.name: each for each in judge(reading, published(), reading.report)}
