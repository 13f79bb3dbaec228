"""Write a backup of the database to one file, while trnwatch runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management import CommandError, CommandParser

from fleet.formatting import size
from fleet.management.cli import BAD_INPUT, PlainCommand
from fleet.ops.backups import BackupError, back_up


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("file", type=Path, help="a file that does not exist yet")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        try:
            manifest = back_up(path, now=datetime.now(UTC))
        except BackupError as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from error
        n_bytes = path.stat().st_size
        if options["json"]:
            answer = {"file": str(path), "bytes": n_bytes, "sha256": manifest.sha256}
            self.write_json(answer | {"engine": manifest.engine, "version": manifest.version})
            return
        self.stdout.write(f"{path}: {size(n_bytes)}, {manifest.engine}, as of {manifest.made_at}.")
