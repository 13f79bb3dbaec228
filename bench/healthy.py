"""False pages per hour of healthy runs."""

from collections.abc import Mapping

from bench.detection import healthy

TIMEOUT_S = 8 * 3600.0


def measure(env: Mapping[str, str], *, hours: int = 24) -> None:
    """Play more hours of 64 healthy nodes; print what fired in all hours played so far."""
    healthy(env, timeout_s=TIMEOUT_S, most=hours)
