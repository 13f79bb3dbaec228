"""Revoke bearer tokens by name; requests with them are refused within seconds."""

from datetime import UTC, datetime
from typing import Any

from django.core.management import CommandParser

from fleet.management.cli import PlainCommand
from fleet.models import Token


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the name that create_token was given")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        valid = Token.objects.filter(name=name, revoked_at=None)
        n_revoked = valid.update(revoked_at=datetime.now(UTC))
        if not n_revoked:
            names = Token.objects.filter(revoked_at=None).order_by("name").values_list("name")
            known = ", ".join(sorted({known for (known,) in names})) or "none"
            raise ValueError(f"NAME: no valid token is named {name!r}. Known: {known}.")
        if options["json"]:
            self.write_json({"name": name, "revoked": n_revoked})
        else:
            self.stdout.write(f"{name}: {n_revoked} revoked")
