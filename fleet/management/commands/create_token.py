"""Create a bearer token for a machine; its secret is printed once and never stored."""

from datetime import UTC, datetime
from typing import Any

from django.core.management import CommandParser

from fleet.access.tokens import make_token
from fleet.management.cli import PlainCommand
from fleet.models import Token
from telemetry.errors import FieldError

ARGUMENTS = {"name": "NAME", "scope": "--scope", "days": "--days"}


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="name of the token")
        parser.add_argument("--scope", required=True, choices=Token.Scope.values)
        parser.add_argument("--days", type=int, help="days until it expires; default: never")

    def handle(self, *args: Any, **options: Any) -> None:
        name, scope, days = options["name"], options["scope"], options["days"]
        try:
            token, secret = make_token(name, scope, days=days, now=datetime.now(UTC))
        except FieldError as error:
            raise ValueError(f"{ARGUMENTS[error.field]}: {error.message}.") from error
        if options["json"]:
            expiry = token.expires_at.isoformat() if token.expires_at else None
            answer = {"name": token.name, "scope": scope, "expires_at": expiry, "token": secret}
            self.write_json(answer)
            return
        self.stdout.write(secret)
        self.stderr.write(f"{token}: shown only once.")
