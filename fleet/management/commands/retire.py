"""Retire nodes and runs that will not report again; their history stays."""

from datetime import UTC, datetime
from typing import Any

from django.core.management import CommandParser

from fleet.management.cli import PlainCommand
from fleet.models import Node, Run
from fleet.runs.retirement import retire, unretire
from telemetry.errors import FieldError
from telemetry.store.hot import hot_store

BY = "command line"


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--node", action="append", default=[], metavar="NAME")
        parser.add_argument("--run", action="append", default=[], metavar="NAME")
        parser.add_argument("--undo", action="store_true", help="bring them back instead")

    def handle(self, *args: Any, **options: Any) -> None:
        rows: list[Node | Run] = []
        for field, known in (("node", Node.objects.all()), ("run", Run.objects.all())):
            for name in options[field]:
                row: Node | Run | None = known.filter(name=name).first()
                if row is None:
                    raise FieldError(field, f"there is no {field} {name[:60]!r}")
                rows.append(row)
        if not rows:
            raise FieldError("node", "name what to retire: --node NAME, --run NAME")
        hot, now = hot_store(), datetime.now(UTC)
        changed = [
            row
            for row in rows
            if (unretire(row, by=BY) if options["undo"] else retire(hot, row, by=BY, now=now))
        ]
        if options["json"]:
            self.write_json(
                {
                    "nodes": [row.name for row in changed if isinstance(row, Node)],
                    "runs": [row.name for row in changed if isinstance(row, Run)],
                }
            )
            return
        done = "in use again" if options["undo"] else "retired"
        for row in rows:
            self.stdout.write(f"{row.name}: {done if row in changed else f'already {done}'}")
