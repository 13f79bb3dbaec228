"""The agent's command line and main loop: read, spool, deliver, until stopped."""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from trnwatch.surroundings import environment_labels
from trnwatch.wire import ServerConnection

from telemetry.agent import VERSION
from telemetry.agent.clock import Clock, Moment
from telemetry.agent.relay import SERVER_WITHIN_S, Relay, RelayServer
from telemetry.agent.reports import Collector, Health, Line, encode_head
from telemetry.agent.sender import AgentSender, TokenFile
from telemetry.agent.sources import EFA_SYSFS, NEURON_SYSFS
from telemetry.agent.spool import Frame, Spool, SpoolError, gzip_member

SPOOL = "/var/lib/trnwatch-agent"
MEGA = 1_000_000
MIN_SPOOL_MB, MAX_SPOOL_MB = 1.0, 100_000.0

# The last report says that the agent was asked to end; a busy server may answer late. Service
# managers kill the agent after 15 s (deploy/agent).
FLUSH_S = 8.0


def read_options(
    arguments: Sequence[str], env: Mapping[str, str] = os.environ
) -> argparse.Namespace:
    """Read the command line; an invalid option ends the program with status 2."""
    parser = _parser(env)
    options = parser.parse_args(arguments)
    options.no_imds = options.no_imds or env.get("TRNWATCH_IMDS", "").strip() == "0"
    options.labels = environment_labels(env)
    _read_token(parser, options, env, is_needed=not options.dry_run)
    if options.stdin and options.command:
        parser.error("--stdin and --command exclude each other: give only one source of reports")
    return options


def _read_token(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    env: Mapping[str, str],
    *,
    is_needed: bool = True,
) -> None:
    options.token = env.get("TRNWATCH_TOKEN")
    options.token_file = options.token_file or env.get("TRNWATCH_TOKEN_FILE")
    if is_needed and not options.server:
        parser.error("--server: missing. Give trnwatch's address, or set TRNWATCH_SERVER")
    if is_needed and not options.token and not options.token_file:
        parser.error(
            "token: missing. Give --token-file, or set TRNWATCH_TOKEN_FILE or TRNWATCH_TOKEN"
        )


def _add_server(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    add = parser.add_argument
    add("--version", action="version", version=VERSION)
    server, trusted = env.get("TRNWATCH_SERVER"), env.get("TRNWATCH_CA_FILE")
    add("--server", default=server, metavar="URL", help="trnwatch's address (TRNWATCH_SERVER)")
    add(
        "--token-file",
        metavar="FILE",
        help="file with the token (TRNWATCH_TOKEN_FILE, TRNWATCH_TOKEN)",
    )
    add(
        "--ca-file",
        default=trusted,
        metavar="FILE",
        help="trusted CA certificates, PEM (TRNWATCH_CA_FILE)",
    )


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trnwatch-agent",
        description="Send this node's Neuron and EFA metrics to trnwatch.",
        epilog="The token is not an option, because other users can see command lines. "
        "`trnwatch-agent relay` sends what the agents of a rack report, in few requests.",
    )
    _add_server(parser, env)
    add = parser.add_argument
    add("--node", default=env.get("TRNWATCH_NODE"), help="node name; default: the instance id")
    add("--command", metavar="LINE", help="run this instead of neuron-monitor")
    add("--stdin", action="store_true", help="read neuron-monitor's reports from standard input")
    add("--no-monitor", action="store_true", help="send EFA and Neuron sysfs only")
    add("--period", type=_seconds, default=1.0, metavar="S", help="seconds between reports (1)")
    add("--every", type=_seconds, default=1.0, metavar="S", help="seconds between requests (1)")
    add("--spool", type=Path, default=Path(env.get("STATE_DIRECTORY") or SPOOL), metavar="DIR")
    add(
        "--spool-mb",
        type=_spool_mb,
        default=256.0,
        metavar="MB",
        help="maximum size of the spool (256)",
    )
    add("--efa-sysfs", type=Path, default=EFA_SYSFS, metavar="DIR")
    add("--neuron-sysfs", type=Path, default=NEURON_SYSFS, metavar="DIR")
    add("--probe-file", metavar="FILE", help="EFA latencies, one JSON object per line")
    add("--probe-command", metavar="LINE", help="a command that prints such lines")
    add(
        "--probe-every",
        type=_seconds_or_never,
        default=60.0,
        metavar="S",
        help="seconds between probes (60); 0: only when the server requests one",
    )
    add("--refuse-probes", action="store_true", help="refuse probes that the server requests")
    add("--refuse-samples", action="store_true", help="refuse samples that the server requests")
    add(
        "--no-imds",
        action="store_true",
        help="do not ask the instance's metadata for labels (TRNWATCH_IMDS=0)",
    )
    add("--once", action="store_true", help="send one report, and end")
    add("--dry-run", action="store_true", help="print what would be sent; send nothing")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        msg = f"{text} s is out of range. Give 0.1 to 3600 seconds"
        raise argparse.ArgumentTypeError(msg)
    return value


def _seconds_or_never(text: str) -> float:
    return _seconds(text) if float(text) else 0.0


def _spool_mb(text: str) -> float:
    value = float(text)
    if not MIN_SPOOL_MB <= value <= MAX_SPOOL_MB:
        msg = f"{text} MB: give {MIN_SPOOL_MB:g} to {MAX_SPOOL_MB:g} megabytes"
        raise argparse.ArgumentTypeError(msg)
    return value


class Stop:
    """Whether SIGTERM or SIGINT asked the agent to end; the current line is finished first."""

    def __init__(self) -> None:
        """Install the signal handlers."""
        self.is_requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["relay"]:
        return _relay(arguments[1:])
    options = read_options(arguments)
    clock, health, stop = Clock(), Health(), Stop()
    health.labels = options.labels
    if not options.no_imds:
        threading.Thread(target=health.read_metadata, daemon=True).start()
    work = _dry_run if options.dry_run else _run
    try:
        return work(options, clock, health, stop)
    except (SpoolError, ValueError, OSError) as error:
        sys.stderr.write(f"trnwatch-agent: {error}\n")
        return 2


def _dry_run(options: argparse.Namespace, clock: Clock, health: Health, stop: Stop) -> int:
    collector = Collector(options, clock, health)
    try:
        for seq, (kind, made, rest) in enumerate(_lines(collector, stop), 1):
            frame = Frame(kind, seq, made, clock.boot, b"")
            line = encode_head(frame, "dry-run", made.wall_s, health.summary(n_waiting=0)) + rest
            sys.stdout.write(line.decode("utf-8", "replace"))
            sys.stdout.flush()
            if options.once:
                break
    except BrokenPipeError:
        return 0
    finally:
        collector.stop()
    return 0


def _relay(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    parser = argparse.ArgumentParser(
        prog="trnwatch-agent relay",
        description="Send what the agents of a rack report to trnwatch, in few requests.",
    )
    _add_server(parser, env)
    add = parser.add_argument
    add("--listen", default="0.0.0.0:8009", metavar="HOST:PORT", help="(0.0.0.0:8009)")
    add("--cert", metavar="FILE", help="the relay's certificates, PEM, if agents use https")
    add("--key", metavar="FILE", help="its private key, PEM")
    add("--hold-mb", type=_spool_mb, default=64.0, metavar="MB", help="reports in memory (64)")
    options = parser.parse_args(arguments)
    _read_token(parser, options, env)
    host, _, port = options.listen.rpartition(":")
    try:
        wire = connection_of(options, timeout_s=SERVER_WITHIN_S)
        relay = Relay(wire, Health(), max_bytes=int(options.hold_mb * MEGA))
        server = RelayServer((host.strip("[]"), int(port)), relay)
        if options.cert:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(options.cert, options.key)
            # The thread of a connection does its handshake.
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
    except (ValueError, OSError) as error:
        sys.stderr.write(f"trnwatch-agent relay: {error}\n")
        return 2
    relay.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        # What has no answer yet is in the spools of the agents.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    server.server_close()
    return 0


def connection_of(options: argparse.Namespace, *, timeout_s: float = 20.0) -> ServerConnection:
    """Return the connection; raises ValueError or OSError where it can never be used."""
    token = TokenFile(file=options.token_file, secret=options.token)
    token.read()
    wire = ServerConnection(
        options.server,
        token=token.read,
        ca_file=options.ca_file,
        timeout_s=timeout_s,
        option="--server",
        ca_option="--ca-file (TRNWATCH_CA_FILE)",
    )
    wire.tls_context()
    return wire


def _run(options: argparse.Namespace, clock: Clock, health: Health, stop: Stop) -> int:
    """Read and deliver; undelivered lines stay in the spool."""
    wire = connection_of(options)
    max_bytes = int(options.spool_mb * MEGA)
    spool = Spool(options.spool, max_bytes=max_bytes, boot=clock.boot, now=clock.now())
    collector = Collector(options, clock, health)
    sender = AgentSender(
        spool,
        wire,
        health,
        clock,
        every_s=options.every,
        node=options.node,
        on_response=collector.take_requests,
    )
    sender.start()
    for kind, made, rest in _lines(collector, stop):
        _keep(spool, health, kind, made, rest)
        if options.once:
            break
    if stop.is_requested:
        health.is_stopping = True
        for kind, made, rest in collector.last_lines():
            _keep(spool, health, kind, made, rest)
    collector.stop()
    sender.stop(FLUSH_S)
    n_left = spool.n_waiting
    if n_left:
        problem = health.summary(n_waiting=n_left).get(
            "problem", "the server did not answer in time"
        )
        sys.stderr.write(f"trnwatch-agent: {n_left} lines stay in the spool: {problem}\n")
    return 1 if options.once and n_left else 0


def _keep(spool: Spool, health: Health, kind: int, made: Moment, rest: bytes) -> None:
    try:
        spool.append(kind, made, gzip_member(rest))
    except OSError as error:
        # A full disk: the line is lost, and the problem reported.
        health.add("n_skipped")
        health.problem("spool", f"spool: {error}")
    else:
        health.problem("spool", "")
        health.set("n_dropped", spool.n_dropped)


def _lines(collector: Collector, stop: Stop) -> Iterator[Line]:
    while not (collector.is_over or stop.is_requested):
        yield from collector.lines()
