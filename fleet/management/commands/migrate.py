"""`manage.py migrate`: as Django's, but a database of a release too new or too old is refused."""

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as MigrateCommand
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from fleet.ops.releases import OtherReleaseError, check_release


class Command(MigrateCommand):
    def handle(self, *arguments: Any, **options: Any) -> None:
        try:
            check_release(
                {*MigrationRecorder(connections[options["database"]]).applied_migrations()}
            )
        except OtherReleaseError as error:
            raise CommandError(str(error), returncode=2) from error
        super().handle(*arguments, **options)
