"""`manage.py import_run`: store a run trained elsewhere, from a table of its steps."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from fleet.ingest.logs import save_log
from fleet.management.commands import import_log
from fleet.management.commands.import_log import options_of, utc_offset_s
from fleet.models import ReadLog
from telemetry.ingest.tables import FIELD_OF, TableError, read_tables


class Command(import_log.Command):
    help = "Import a run from CSV, or from an export of TensorBoard, W&B or MLflow (CSV, JSON)."
    files = "a table; NAME=FILE names the metric of a file with one (default: loss)"

    def add_more(self, parser: CommandParser) -> None:
        """Tables have step numbers."""

    def imported(self, options: dict[str, Any]) -> ReadLog:
        """Read all files before anything is written."""
        given = [_named(text) for text in options["file"]]
        options["file"] = [str(path) for _, path in given]
        about, offset_s = options_of(options), utc_offset_s(options)
        try:
            log = read_tables(given, utc_offset_s=offset_s)
            file_s = max(path.stat().st_mtime for _, path in given)
        except TableError as error:
            raise ValueError(f"FILE: {error}") from error
        except OSError as error:
            raise ValueError(f"FILE: {error.filename}: {error.strerror}") from error
        if not log.n_lines:
            raise ValueError(f"FILE: {given[0][1].name} has no step; export it again")
        return save_log(log, about, file_s=file_s, now=timezone.now())


def _named(text: str) -> tuple[str, Path]:
    """Return the field and the path that ``NAME=FILE`` names."""
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return "loss", Path(text)
    if name not in FIELD_OF:
        raise ValueError(f"FILE: {name[:40]!r} is not a known column")
    return FIELD_OF[name], Path(path)
