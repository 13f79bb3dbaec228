"""`manage.py migrate`: as Django's, but a database of a newer release is refused."""

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as MigrateCommand
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from fleet.ops.services import NewerDatabaseError, refuse_newer


class Command(MigrateCommand):
    def handle(self, *arguments: Any, **options: Any) -> None:
        try:
            refuse_newer(MigrationLoader(connections[options["database"]]))
        except NewerDatabaseError as error:
            raise CommandError(str(error), returncode=2) from error
        super().handle(*arguments, **options)
