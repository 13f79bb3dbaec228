"""A remote writer over a small fleet."""

from threading import Event

from telemetry.long_term.remote_write import Endpoint, WriteClient
from telemetry.long_term.writer import Writer
from telemetry.store.hot import HotStore


def writer_to(
    url: str, hot: HotStore, *, now_s: float, every_s: int = 15, n_threads: int = 2
) -> Writer:
    """Return a writer that believes it is a given time."""
    hot.now = lambda: now_s
    client = WriteClient(
        Endpoint(url, timeout_s=10.0, keep_alive=True),
        Event(),
        n_threads=n_threads,
        first_pause_s=0.05,
    )
    return Writer(hot, client, every_s=every_s, clock=lambda: now_s)


def write_all(writer: Writer) -> None:
    """Deliver everything that is due."""
    try:
        while writer.turn():
            pass
    finally:
        writer.client.close()
