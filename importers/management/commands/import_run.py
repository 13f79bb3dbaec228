"""`manage.py import_run`: store a run trained elsewhere, from a table of its steps."""

import math
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from fleet.models import ReadLog
from importers.exports import TableError, files_of
from importers.management.commands import import_log
from importers.management.commands.import_log import options_of, utc_offset_s
from importers.store.logs import save_log
from importers.tables import FIELD_OF, read_tables

MAX_STEP_S = 1e6


class Command(import_log.Command):
    help = (
        "Import a run from CSV, JSON or Parquet, or from an export of Weights & Biases, MLflow, "
        "TensorBoard or a Hugging Face trainer."
    )
    files = "a table, an export, or its folder; NAME=FILE names the metric of a file with one"

    def add_more(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--step-s", type=float, default=0.0, help="seconds of a step, for files without times"
        )
        parser.add_argument(
            "--export-run", default="", metavar="NAME", help="which run of a file with several"
        )

    def imported(self, options: dict[str, Any]) -> ReadLog:
        """Read all files before anything is written."""
        step_s: float = options["step_s"]
        if not 0 <= step_s <= MAX_STEP_S:
            raise ValueError(f"--step-s: {step_s:g} is out of range; give 0 to 1,000,000 s")
        given = [_named(text) for text in options["file"]]
        options["file"] = [str(path) for _, path in given]
        about, offset_s = options_of(options), utc_offset_s(options)
        try:
            files = [(name, each) for name, path in given for each in files_of(path)]
            log = read_tables(
                files,
                utc_offset_s=offset_s,
                run=options["export_run"],
                step_s=step_s or math.nan,
                began_s=about.started_at.timestamp() if about.started_at else math.nan,
            )
            file_s = max(path.stat().st_mtime for _, path in files)
        except TableError as error:
            raise ValueError(f"FILE: {error}") from error
        except OSError as error:
            raise ValueError(f"FILE: {error.filename}: {error.strerror}") from error
        return save_log(log, about, file_s=file_s, now=timezone.now())


def _named(text: str) -> tuple[str | None, Path]:
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return None, Path(text)
    if name.casefold() not in FIELD_OF:
        raise ValueError(f"FILE: {name[:40]!r} is not a known column")
    return FIELD_OF[name.casefold()], Path(path)
