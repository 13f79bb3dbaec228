#!/usr/bin/env python
"""Run one of trnwatch's commands."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
    execute_from_command_line(sys.argv)
