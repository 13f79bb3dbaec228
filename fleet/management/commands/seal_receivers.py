"""`manage.py seal_receivers`: every receiver's address and secret sealed with the newest key."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from fleet.management.cli import PlainCommand
from fleet.models import Receiver


class Command(PlainCommand):
    """Seal secrets that are plain or use an older key; can be repeated."""

    help = "Seal receivers with the newest key, after an upgrade or with a new key; see --open."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--open", action="store_true", help="write them as plain text, for the release before"
        )

    def handle(self, *, json: bool, **options: Any) -> None:
        """Seal or open all receivers in one transaction."""
        locked, n_done = [], 0
        with transaction.atomic():
            for receiver in Receiver.objects.select_for_update().order_by("pk"):
                if receiver.is_locked:
                    locked.append(receiver.name)
                    continue
                if options["open"]:
                    receiver.save_plain()
                else:
                    receiver.save(update_fields=["target", "secret"])
                n_done += 1
        if json:
            self.write_json({"done": n_done, "locked": locked, "are_sealed": not options["open"]})
        else:
            how = "written as plain text" if options["open"] else "sealed with the newest key"
            self.stdout.write(f"{n_done} receiver{'s' * (n_done != 1)} {how}.")
        if locked:
            raise CommandError(
                f"No key that is set opens {', '.join(locked)}: add the one they were sealed with "
                "to TRNWATCH_SEALING_KEY_FALLBACKS, or give their addresses again."
            )
