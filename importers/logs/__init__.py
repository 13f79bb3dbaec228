"""Ingest of training logs: steps, compiles and hardware errors from text of any framework."""

from importers.logs.errors import LoggedError, ended_by
from importers.logs.reading import TABLE, Log, LogContext, LogReader, read_logs
from importers.logs.records import HardwareError
from importers.logs.steps import LoggedSteps, NotFinite, complete_steps
from telemetry.compiles import FAIL, HIT, MISS, Compile

__all__ = [
    "FAIL",
    "HIT",
    "MISS",
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
