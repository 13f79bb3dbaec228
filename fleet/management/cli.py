"""What trnwatch's commands share: JSON or a table on stdout, bad input on stderr with exit 2."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

BAD_INPUT = 2


class PlainCommand(BaseCommand):
    """A command that answers in words, or with ``--json`` as one object; no system checks.

    Any ValueError (JobError, CatalogError, …) becomes one line on stderr and exit code 2.
    """

    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Offer ``--json``."""
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object instead of a table"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; bad input ends it with exit code 2."""
        try:
            return super().execute(*args, **options)
        except ValueError as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from error

    def write_json(self, answer: Mapping[str, object]) -> None:
        """Print one JSON object; what is not known is null, never NaN."""
        self.stdout.write(json.dumps(answer, allow_nan=False))

    def write_table(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Print rows of name, value and remark in columns, values to the right."""
        rows = list(rows)
        names = max(len(name) for name, _, _ in rows)
        values = max(len(value) for _, value, _ in rows)
        for name, value, remark in rows:
            self.stdout.write(f"  {name:<{names}}  {value:>{values}}  {remark}".rstrip())
