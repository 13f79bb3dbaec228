"""Make a bearer token for a machine; its secret is printed once and never stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management import CommandParser

from fleet.management.cli import PlainCommand
from fleet.models import Token

MAX_NAME = 80


class Command(PlainCommand):
    """`manage.py create_token`."""

    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        """Say who the token is for, what it may do and for how long."""
        super().add_arguments(parser)
        parser.add_argument("name", help="what it is for, for people")
        parser.add_argument("--scope", required=True, choices=Token.Scope.values)
        parser.add_argument("--days", type=int, help="how long it lasts; without it, for good")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it, and print its secret."""
        name, days = options["name"].strip(), options["days"]
        if not 0 < len(name) <= MAX_NAME:
            raise ValueError(f"NAME: 1 to {MAX_NAME} characters.")
        if days is not None and not 0 < days <= 36_500:
            raise ValueError("--days: 1 to 36500.")
        now = datetime.now(UTC)
        expires_at = None if days is None else now + timedelta(days=days)
        token, secret = Token.issue(name, options["scope"], now=now, expires_at=expires_at)
        if options["json"]:
            expiry = expires_at.isoformat() if expires_at else None
            answer = {"name": name, "scope": token.scope, "expires_at": expiry, "token": secret}
            self.write_json(answer)
            return
        self.stdout.write(secret)
        self.stderr.write(f"{token}: shown this once; only its hash is kept.")
