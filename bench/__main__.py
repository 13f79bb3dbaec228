"""`python -m bench [NAME …]`: run the benchmarks, or those named."""

import importlib
import subprocess
import sys

from bench.installation import installation

NAMES = (
    "store",
    "history",
    "metrics",
    "longterm",
    "door",
    "agent",
    "pages",
    "fleet",
    "reporter",
    "trials",
    "detection",
)


def main(names: list[str]) -> int:
    """Measure one benchmark here; each of several in a process and an installation of its own.

    What one leaves behind in Redis and the database must not weigh on the next.
    """
    if len(names) == 1:
        with installation() as env:
            importlib.import_module(f"bench.{names[0]}").measure(env)
        return 0
    return max(
        subprocess.run([sys.executable, "-m", "bench", name], check=False).returncode
        for name in names or NAMES
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
