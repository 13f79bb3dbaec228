"""The program: read, spool, deliver, until it is told to stop."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from telemetry.agent.clock import Clock
from telemetry.agent.collecting import Collector, Line
from telemetry.agent.envelope import head
from telemetry.agent.frames import Frame, packed
from telemetry.agent.health import Health
from telemetry.agent.options import MEGA, read_options
from telemetry.agent.sender import Sender
from telemetry.agent.spool import Spool, SpoolError
from telemetry.agent.wire import Token, Wire

FLUSH_S = 3.0


class Stop:
    """Whether somebody asked the agent to end; nothing is broken off in the middle."""

    def __init__(self) -> None:
        """Listen for the signals that ask for it."""
        self.is_asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True


def main(words: Sequence[str]) -> int:
    """Run the agent, and return its exit status."""
    options = read_options(words)
    clock, health, stop = Clock(), Health(), Stop()
    work = _dry if options.dry_run else _run
    try:
        return work(options, clock, health, stop)
    except (SpoolError, ValueError, OSError) as error:
        sys.stderr.write(f"trnwatch-agent: {error}\n")
        return 2


def _dry(options: argparse.Namespace, clock: Clock, health: Health, stop: Stop) -> int:
    """Print what would be sent."""
    collector = Collector(options, clock, health)
    try:
        for seq, (kind, made, rest) in enumerate(_all(collector, stop), 1):
            frame = Frame(kind, seq, made, clock.boot, b"")
            line = head(frame, "dry-run", made.wall_s, health.said(n_waiting=0)) + rest
            sys.stdout.write(line.decode("utf-8", "replace"))
            sys.stdout.flush()
            if options.once:
                break
    except BrokenPipeError:
        return 0
    finally:
        collector.stop()
    return 0


def _run(options: argparse.Namespace, clock: Clock, health: Health, stop: Stop) -> int:
    """Read and deliver; what could not be delivered stays in the spool."""
    token = Token(file=options.token_file, secret=options.token)
    token.read()
    wire = Wire(options.server, token=token, node=options.node, ca_file=options.ca_file)
    most_bytes = int(options.spool_mb * MEGA)
    spool = Spool(options.spool, most_bytes=most_bytes, boot=clock.boot, now=clock.now())
    sender = Sender(spool, wire, health, clock, every_s=options.every)
    collector = Collector(options, clock, health)
    sender.start()
    for line in _all(collector, stop):
        _keep(spool, line, health)
        if options.once:
            break
    collector.stop()
    sender.stop(FLUSH_S)
    n_left = spool.n_waiting
    if n_left:
        said = health.said(n_waiting=n_left).get("problem", "the server did not answer in time")
        sys.stderr.write(f"trnwatch-agent: {n_left} lines stay in the spool; {said}\n")
    return 1 if options.once and n_left else 0


def _all(collector: Collector, stop: Stop) -> Iterator[Line]:
    """Yield lines for as long as there are any."""
    while not (collector.is_over or stop.is_asked):
        yield from collector.lines()


def _keep(spool: Spool, line: Line, health: Health) -> None:
    """Put a line into the spool; a disk that is full costs the line, and is said."""
    kind, made, rest = line
    try:
        spool.append(kind, made, packed(rest))
    except OSError as error:
        health.add("n_skipped")
        health.problem("spool", f"spool: {error}")
    else:
        health.problem("spool", "")
        health.set("n_dropped", spool.n_dropped)
