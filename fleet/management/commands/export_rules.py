"""`manage.py export_rules`: write rules for Prometheus."""

from pathlib import Path
from typing import Any

from django.core.management import CommandParser

from fleet.management.cli import PlainCommand
from fleet.metrics.rules import EXAMPLE_URL, base_url, rule_file


class Command(PlainCommand):
    help = "Write recording and alerting rules for Prometheus."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--output", type=Path, help="file to write; default: standard output")
        parser.add_argument("--url", default=EXAMPLE_URL, help="base URL of this trnwatch")

    def handle(self, *, output: Path | None, url: str, **_: Any) -> None:
        text = rule_file(base_url(url))
        if output is None:
            self.stdout.write(text, ending="")
        else:
            output.write_text(text)
