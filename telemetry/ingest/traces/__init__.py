"""Recorded traces come in: files of operations, each made one Trace."""

from telemetry.ingest.traces.reading import read_trace

__all__ = ["read_trace"]
