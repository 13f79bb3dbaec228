"""Replace the database by a backup, atomically; trnwatch must not run."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import CommandError, CommandParser

from fleet.management.cli import BAD_INPUT, PlainCommand
from fleet.ops.backups import restore
from fleet.ops.releases import missing_migrations
from fleet.ops.sockets import AlreadyRunningError, Lock


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="a file that `manage.py backup` wrote")
        parser.add_argument(
            "--replace", action="store_true", help="overwrite a database that is not empty"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        try:
            with Lock(settings.DATA_DIR / "up.lock"):
                manifest = restore(path, replaces=options["replace"])
        except AlreadyRunningError as error:
            message = f"trnwatch runs on this folder ({error}); stop it first."
            raise CommandError(message, returncode=BAD_INPUT) from error
        n_missing = missing_migrations(manifest.applied)
        if options["json"]:
            answer = {"file": str(path), "made_at": manifest.made_at, "version": manifest.version}
            self.write_json(answer | {"migrations_to_apply": n_missing})
            return
        self.stdout.write(f"The database is restored to {manifest.made_at}.")
        if n_missing:
            self.stdout.write(f"Newer migrations: {n_missing}. Run `manage.py migrate` next.")
