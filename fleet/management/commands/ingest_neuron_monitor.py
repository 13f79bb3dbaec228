"""Read neuron-monitor's stream as a node of the fleet: live from stdin, or a file of the past."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import CommandError, CommandParser

from fleet.ingest.nodes import IngestBatch, response_of
from fleet.ingest.pipe import PipeIngest
from fleet.ingest.rows import NAME, NAME_RULE
from fleet.management.cli import PlainCommand
from telemetry.store.hot import hot_store

LATEST_S = 1e11
# Refusals that are shown; the rest are counted.
MAX_SHOWN = 3


class Command(PlainCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="- is stdin")
        parser.add_argument("--node", help="name of the node; default: its instance ID")
        parser.add_argument(
            "--start",
            type=float,
            metavar="UNIX_S",
            help="start of the first report of a FILE; default: the last one ends now",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        node = options["node"]
        if node is not None and not NAME.fullmatch(node):
            raise ValueError(f"--node: {node!r} is not a valid name: {NAME_RULE}.")
        start_s = options["start"]
        if start_s is not None and not 0 <= start_s <= LATEST_S:
            raise ValueError(f"--start: {start_s:g} is out of range; give Unix seconds.")
        hot = hot_store()
        intake = PipeIngest(hot, node=node, keep_s=settings.HOT_KEEP_S)
        total = IngestBatch()
        try:
            for delivery in _deliveries(intake, options["file"], start_s):
                for refusal in delivery.refused[: max(0, MAX_SHOWN - len(total.refused))]:
                    self.stderr.write(str(refusal))
                total.absorb(delivery)
        except KeyboardInterrupt:
            self.stderr.write("Interrupted.")
        if (more := total.n_refused - MAX_SHOWN) > 0:
            self.stderr.write(f"and {more:,} more")
        text = (
            f"{total.node or 'no node'}: {total.n_accepted} reports accepted, "
            f"{total.n_refused} refused ({total.n_late} of them too old), "
            f"{total.n_repeated} repeated"
        )
        if options["json"]:
            self.write_json(response_of(total))
        else:
            self.stdout.write(text)
        if not total.n_accepted and not total.n_repeated:
            raise ValueError("FILE: no line was accepted; is it neuron-monitor's output?")
        if intake.n_buffered:
            raise CommandError(f"The store is unavailable; {intake.n_buffered} seconds are lost.")


def _deliveries(intake: PipeIngest, file: str, start_s: float | None) -> Iterator[IngestBatch]:
    if file != "-":
        try:
            yield from intake.replay_file(Path(file), start_s=start_s)
        except OSError as error:
            raise ValueError(f"FILE: {file}: {error.strerror}") from error
        return
    if start_s is not None:
        raise ValueError("--start: needs a FILE; a live stream starts now.")
    try:
        descriptor = sys.stdin.fileno()
    except OSError:
        yield from intake.read_stream(sys.stdin.buffer)
    else:
        yield from intake.read_pipe(descriptor)
