"""False pages per hour of healthy runs."""

from collections.abc import Mapping

from bench.detection import healthy

PATIENCE_S = 8 * 3600.0


def measure(env: Mapping[str, str], *, hours: int = 24) -> None:
    """Play more hours of 64 healthy nodes; print what fired in all hours played so far."""
    healthy(env, patience_s=PATIENCE_S, most=hours)
