"""A probe's output read from beginning to end, whichever tool printed it."""

from telemetry.ingest.logs.text import pieces_of
from telemetry.ingest.probes.nccl import Nccl
from telemetry.ingest.probes.nccom import Nccom, is_report, read_report
from telemetry.ingest.probes.pingpong import Pingpong
from telemetry.ingest.probes.rows import Probe

MOST_BYTES = 16 << 20
MOST_ROWS = 100_000
MOST_EXAMPLES = 5
LONGEST_EXAMPLE = 120


def read_probe(data: bytes) -> Probe:
    """Read the output of nccom-test (table or report), nccl-tests or fi_pingpong.

    Never raises: what is not understood is counted, of what is too long the beginning is read.
    """
    data, probe = data[:MOST_BYTES], Probe()
    document = is_report(data.decode("utf-8", "replace"))
    if document is not None:
        read_report(document, probe)
        return probe
    readers = (Nccom(), Nccl(), Pingpong())
    for number, line in enumerate(data.splitlines(), start=1):
        probe.n_lines += 1
        pieces = list(pieces_of(line))
        understood = [any(each.read(piece, probe) for each in readers) for piece in pieces]
        if pieces and not any(understood):
            probe.n_skipped += 1
            if len(probe.skipped) < MOST_EXAMPLES:
                probe.skipped.append((number, pieces[0].strip()[:LONGEST_EXAMPLE]))
        if len(probe.rows) >= MOST_ROWS:
            break
    return probe
