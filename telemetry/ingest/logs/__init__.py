"""Training logs come in: steps, compiles and hardware errors out of any text."""

from telemetry.ingest.logs.reading import Log, LogContext, LogReader, UnreadLine, read_logs
from telemetry.ingest.logs.records import FAIL, HIT, MISS, Compile, HardwareError, TrainingTotals
from telemetry.ingest.logs.steps import LoggedSteps, complete_steps

__all__ = [
    "FAIL",
    "HIT",
    "MISS",
    "Compile",
    "HardwareError",
    "Log",
    "LogContext",
    "LogReader",
    "LoggedSteps",
    "TrainingTotals",
    "UnreadLine",
    "complete_steps",
    "read_logs",
]
