"""Sick parts of machines, by their own telemetry: cores, memories, EFA devices, whole nodes."""
