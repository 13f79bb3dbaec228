"""`python -m bench.healthy [HOURS]`: healthy hours only, on from where the last run stopped."""

import sys

from bench.detection import healthy
from bench.installation import installation

PATIENCE_S = 8 * 3600.0


def main(hours: int) -> None:
    """Play so many hours of 64 healthy nodes, and print what fired in all played so far."""
    with installation() as env:
        healthy(env, patience_s=PATIENCE_S, most=hours)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
