"""Ingest of training logs: steps, compiles and hardware errors from text of any framework."""

from telemetry.compiles import FAIL, HIT, MISS, Compile
from telemetry.ingest.logs.errors import LoggedError, ended_by
from telemetry.ingest.logs.families import PROGRESS
from telemetry.ingest.logs.reading import TABLE, Log, LogContext, LogReader, read_logs
from telemetry.ingest.logs.records import HardwareError
from telemetry.ingest.logs.steps import LoggedSteps, NotFinite, complete_steps

__all__ = [
    "FAIL",
    "HIT",
    "MISS",
    "PROGRESS",
    "TABLE",
    "Compile",
    "HardwareError",
    "Log",
    "LogContext",
    "LogReader",
    "LoggedError",
    "LoggedSteps",
    "NotFinite",
    "complete_steps",
    "ended_by",
    "read_logs",
]
