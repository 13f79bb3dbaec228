"""`manage.py import_run`: store a run trained elsewhere, from a table of its steps."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from fleet.ingest.logs import save_log
from fleet.management.commands import import_log
from fleet.management.commands.import_log import told_of, utc_offset_s
from fleet.models import ReadLog
from telemetry.ingest.tables import FIELD_OF, TableError, read_tables


class Command(import_log.Command):
    """Read tables of one run's steps, store it as a finished run, and print a summary."""

    help = "Import a run from CSV, or from an export of TensorBoard, W&B or MLflow (CSV, JSON)."
    files = "a table; of a single metric, NAME=FILE says which (else: loss)"

    def add_more(self, parser: CommandParser) -> None:
        """Take nothing more: tables have step numbers."""

    def imported(self, options: dict[str, Any]) -> ReadLog:
        """Read everything before anything is written."""
        given = [_named(text) for text in options["file"]]
        options["file"] = [str(path) for _, path in given]
        told, offset_s = told_of(options), utc_offset_s(options)
        try:
            log = read_tables(given, utc_offset_s=offset_s)
            file_s = max(path.stat().st_mtime for _, path in given)
        except TableError as error:
            raise ValueError(f"FILE: {error}") from error
        except OSError as error:
            raise ValueError(f"FILE: {error.filename}: {error.strerror}") from error
        if not log.n_lines:
            raise ValueError(f"FILE: {given[0][1].name} has no step; export it anew")
        return save_log(log, told, file_s=file_s, now=timezone.now())


def _named(text: str) -> tuple[str, Path]:
    """Return what the values of a file of single values are, and its path."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return "loss", Path(text)
    if name not in FIELD_OF:
        raise ValueError(f"FILE: {name[:40]!r} is none of the columns that are read")
    return FIELD_OF[name], Path(path)
