"""What is broken now, by evidence: quantities, residuals, tests, causes."""

from telemetry.detect2.engine import find_slowdowns

__all__ = ["find_slowdowns"]
