#!/usr/bin/env python
"""Run one of trnwatch's commands."""

import os
import sys
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db import DatabaseError

from fleet.ops import outages


def main() -> None:
    """Run the command; what an operator can mend is said in words, without a traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        said = str(error)
    except DatabaseError as error:
        if not outages.is_outage(error):
            raise
        said = outages.database_advice(error)
    except OSError as error:
        if not outages.is_disk_error(error):
            raise
        said = outages.disk_advice(error, Path.cwd())
    else:
        return
    sys.exit(f"CommandError: {said}")


if __name__ == "__main__":
    main()
