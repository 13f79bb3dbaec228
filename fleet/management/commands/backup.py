"""Write a backup of the database to one file, while trnwatch runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management import CommandParser

from fleet.formatting import size
from fleet.management.cli import PlainCommand
from fleet.ops.backups import back_up


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="a file that does not exist yet")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        manifest = back_up(path, now=datetime.now(UTC))
        n_bytes = path.stat().st_size
        if options["json"]:
            answer = {"file": str(path), "bytes": n_bytes, "sha256": manifest.sha256}
            self.write_json(answer | {"engine": manifest.engine, "version": manifest.version})
            return
        self.stdout.write(f"{path}: {size(n_bytes)}, {manifest.engine}, as of {manifest.made_at}.")
