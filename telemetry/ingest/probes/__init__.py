"""What network and collective probes print, as rows in bytes, seconds and bytes per second."""

from telemetry.ingest.probes.reading import read_probe
from telemetry.ingest.probes.rows import Failure, Probe, Row

__all__ = ["Failure", "Probe", "Row", "read_probe"]
