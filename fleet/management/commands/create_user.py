"""Create an account with a role and a random password, which is printed once."""

from typing import Any

from django.contrib.auth.models import Group, User
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.core.management import CommandParser

from fleet.access.roles import ROLES, random_password
from fleet.management.cli import PlainCommand


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name")
        parser.add_argument("--role", default=ROLES[0], choices=ROLES)

    def handle(self, *args: Any, **options: Any) -> None:
        name, role = options["name"], options["role"]
        try:
            UnicodeUsernameValidator()(name)
        except ValidationError as error:
            raise ValueError(f"NAME: {error.messages[0]}") from error
        if User.objects.filter(username=name).exists():
            raise ValueError(f"NAME: {name} already has an account.")
        password = random_password(User(username=name))
        user = User.objects.create_user(name, password=password)
        user.groups.add(Group.objects.get(name=role))
        if options["json"]:
            self.write_json({"name": name, "role": role, "password": password})
        else:
            self.stdout.write(password)
            self.stderr.write(f"{name} ({role}): shown only once.")
