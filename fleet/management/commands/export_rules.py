"""`manage.py export_rules`: the rules as Prometheus takes them."""

from pathlib import Path
from typing import Any

from django.core.management import CommandParser

from fleet.management.cli import PlainCommand
from fleet.metrics.rules import EXAMPLE_URL, base_url, rule_file


class Command(PlainCommand):
    """Write recording and alerting rules from the definitions that detection uses."""

    help = "Write Prometheus' recording and alerting rules."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take where to, and where links shall lead."""
        super().add_arguments(parser)
        parser.add_argument("--output", type=Path, help="a file; without it, standard output")
        parser.add_argument("--url", default=EXAMPLE_URL, help="what people call this trnwatch")

    def handle(self, *, output: Path | None, url: str, **_: Any) -> None:
        """Write them."""
        text = rule_file(base_url(url))
        if output is None:
            self.stdout.write(text, ending="")
        else:
            output.write_text(text)
