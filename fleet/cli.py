"""What trnwatch's commands share: an answer on stdout, bad input on stderr with exit code 2."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

BAD_INPUT = 2


class BadInputError(CommandError):
    """Something given on the command line that can't be used: names the field and the remedy."""

    def __init__(self, message: str) -> None:
        """End the command with exit code 2."""
        super().__init__(message, returncode=BAD_INPUT)


class ReportingCommand(BaseCommand):
    """A command that answers in words, or with ``--json`` as one object.

    Any ValueError (JobError, CatalogError, …) becomes one line on stderr and exit code 2.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        """Offer ``--json``."""
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object instead of words"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; bad input ends it with exit code 2."""
        try:
            return super().execute(*args, **options)
        except ValueError as error:
            raise BadInputError(str(error)) from error

    def report(self, answer: Mapping[str, object], text: str, *, as_json: bool) -> None:
        """Print the answer; in JSON, what is not known is null, never NaN."""
        self.stdout.write(json.dumps(answer, allow_nan=False) if as_json else text)


def table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return rows of name, value and remark in columns, values to the right."""
    rows = list(rows)
    names = max(len(name) for name, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    lines = (f"  {name:<{names}}  {value:>{values}}  {remark}" for name, value, remark in rows)
    return "\n".join(line.rstrip() for line in lines)
