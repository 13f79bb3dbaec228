"""Create an account with a role and a random password, which is printed once."""

from typing import Any

from django.core.management import CommandParser
from django.utils import timezone

from fleet.access.people import create_person
from fleet.access.roles import ROLES
from fleet.management.cli import PlainCommand
from telemetry.errors import FieldError


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--role", default=ROLES[0], choices=ROLES)

    def handle(self, *args: Any, **options: Any) -> None:
        name, role = options["name"], options["role"]
        try:
            _, password = create_person(name, role, by="", now=timezone.now())
        except FieldError as error:
            raise ValueError(f"{error.field.upper()}: {error.message}") from error
        if options["json"]:
            self.write_json({"name": name, "role": role, "password": password})
        else:
            self.stdout.write(password)
            self.stderr.write(f"{name} ({role}): shown only once.")
