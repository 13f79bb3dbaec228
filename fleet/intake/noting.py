"""What is noted of accepted reports beside their blocks: enough for the exporter's names."""

from collections.abc import Sequence
from dataclasses import dataclass

from telemetry.ingest.neuron_monitor import Reading
from telemetry.store.last_reports import Note

# A node's newest report is kept at most this often, or as soon as its processes change: it
# stands for figures that move slowly, and packing it costs more than taking it.
KEEP_EVERY_S = 5.0


@dataclass(slots=True)
class Notebook:
    """What was last kept of one node."""

    kept_s: float = -KEEP_EVERY_S
    processes: frozenset[str] | None = None

    def notes(
        self, node: str, accepted: Sequence[tuple[Reading, float]], *, now_s: float
    ) -> list[Note]:
        """Return a note per report, given with the second it ended; some keep the last one."""
        notes = [
            Note(node, end_s, end_s if reading.at_s is None else reading.at_s, reading.executed)
            for reading, end_s in accepted
        ]
        if not accepted:
            return notes
        reading, end_s = accepted[-1]
        processes = frozenset(reading.executed)
        if now_s - self.kept_s >= KEEP_EVERY_S or processes != self.processes:
            self.kept_s, self.processes = now_s, processes
            notes[-1] = Note(node, end_s, notes[-1].made_s, reading.executed, bytes(reading.line))
        return notes
