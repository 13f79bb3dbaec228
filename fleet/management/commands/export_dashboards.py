"""`manage.py export_dashboards`: write dashboards for Grafana."""

from pathlib import Path
from typing import Any

from django.core.management import CommandParser

from fleet.management.cli import PlainCommand
from fleet.metrics.dashboards import dashboard_files
from fleet.metrics.rules import EXAMPLE_URL, base_url


class Command(PlainCommand):
    help = "Write dashboards for Grafana into a folder."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="a folder that Grafana reads")
        parser.add_argument("--url", default=EXAMPLE_URL, help="base URL of this trnwatch")

    def handle(self, *, folder: Path, url: str, **_: Any) -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder}: is not a folder. Create it first.")
        for name, text in dashboard_files(base_url(url)).items():
            (folder / name).write_text(text)
            self.stdout.write(str(folder / name))
