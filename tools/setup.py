"""Set this folder up from its lock files: `setup.py run`, `setup.py dev` or `setup.py lock`.

Needs nothing but Python and pip. What is done already is not done again, and costs nothing.
"""

import check_python  # isort: skip
import os
import sys
import time

import front_end
import python_packages
from common import ROOT, say


def main(goal: str) -> None:
    """Install what ``goal`` needs, or write the lock files again."""
    began_s = time.monotonic()
    os.chdir(ROOT)
    did = python_packages.make_venv()
    if goal == "lock":
        did |= python_packages.have_uv()
        upgrade = "--upgrade" in sys.argv
        python_packages.lock(upgrade=upgrade, oldest=check_python.OLDEST)
        front_end.lock(upgrade=upgrade)
    else:
        background = front_end.start(goal)
        did |= python_packages.install(goal)
        did |= front_end.finish(goal, background)
    if did:
        say(f"Set up in {time.monotonic() - began_s:.0f} s.")


if __name__ == "__main__":
    main(sys.argv[1])
