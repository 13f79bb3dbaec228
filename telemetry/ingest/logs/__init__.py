"""Training logs come in: steps, compiles and hardware errors out of any text."""

from telemetry.ingest.logs.reading import About, Example, Log, Reading, read_logs
from telemetry.ingest.logs.records import FAIL, HIT, MISS, Compile, HardwareError, Totals
from telemetry.ingest.logs.steps import LoggedSteps, completed

__all__ = [
    "FAIL",
    "HIT",
    "MISS",
    "About",
    "Compile",
    "Example",
    "HardwareError",
    "Log",
    "LoggedSteps",
    "Reading",
    "Totals",
    "completed",
    "read_logs",
]
