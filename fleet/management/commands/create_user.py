"""Make an account with a role; its password is made up, printed once, and stored hashed."""

from typing import Any

from django.contrib.auth.models import Group, User
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.core.management import CommandParser

from fleet.access.roles import ROLES, random_password
from fleet.management.cli import PlainCommand


class Command(PlainCommand):
    """`manage.py create_user`."""

    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        """Say who, and what they may do."""
        super().add_arguments(parser)
        parser.add_argument("name")
        parser.add_argument("--role", default=ROLES[0], choices=ROLES)

    def handle(self, *args: Any, **options: Any) -> None:
        """Make the account, and print its password."""
        name, role = options["name"], options["role"]
        try:
            UnicodeUsernameValidator()(name)
        except ValidationError as error:
            raise ValueError(f"NAME: {error.messages[0]}") from error
        if User.objects.filter(username=name).exists():
            raise ValueError(f"NAME: {name} has an account already.")
        password = random_password(User(username=name))
        user = User.objects.create_user(name, password=password)
        user.groups.add(Group.objects.get(name=role))
        if options["json"]:
            self.write_json({"name": name, "role": role, "password": password})
        else:
            self.stdout.write(password)
            self.stderr.write(f"{name} ({role}): shown this once; only its hash is kept.")
