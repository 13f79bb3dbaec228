"""`python -m bench [NAME …]`: run the benchmarks, or those named."""

import importlib
import sys

from bench.installation import installation

NAMES = ("store", "history", "metrics", "door", "pages", "fleet")

if __name__ == "__main__":
    with installation() as env:
        for name in sys.argv[1:] or NAMES:
            importlib.import_module(f"bench.{name}").measure(env)
