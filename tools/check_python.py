"""Imported first: restarts with a newer Python if this one is too old, or prints an error.

Written so that any Python 3 can read it.
"""

import os
import shutil
import sys

OLDEST = (3, 11)
NEWEST_KNOWN = 14

if sys.version_info < OLDEST:
    for _minor in range(NEWEST_KNOWN, OLDEST[1] - 1, -1):
        _newer = shutil.which("python3.{}".format(_minor))  # noqa: UP032
        if _newer:
            os.execv(_newer, [_newer, *sys.argv])
    sys.exit(
        "trnwatch needs Python 3.11 or newer, and {} is {}.{}. "
        "Install one, or name it: make up PYTHON=/path/to/python3.11".format(
            sys.executable, *sys.version_info[:2]
        )
    )
