"""What the agent is told on its command line and by its environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from telemetry.agent import VERSION, efa, neuron

SPOOL = "/var/lib/trnwatch-agent"
MEGA = 1_000_000
LEAST_SPOOL_MB, MOST_SPOOL_MB = 1.0, 100_000.0


def read_options(words: Sequence[str], env: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """Return the options; a mistake ends the program with its reason and status 2."""
    parser = _parser(env)
    options = parser.parse_args(words)
    options.token = env.get("TRNWATCH_TOKEN")
    options.token_file = options.token_file or env.get("TRNWATCH_TOKEN_FILE")
    if not options.dry_run:
        if not options.server:
            parser.error("--server or TRNWATCH_SERVER must say where to send to")
        if not options.token and not options.token_file:
            parser.error("a token is needed: --token-file, TRNWATCH_TOKEN_FILE or TRNWATCH_TOKEN")
    if options.stdin and options.command:
        parser.error("--stdin and --command: only one of them can be where reports come from")
    return options


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="trnwatch-agent",
        description="Send what this node's Neuron and EFA devices say to trnwatch.",
        epilog="The token is never given here: other users see command lines.",
    )
    add = parser.add_argument
    add("--version", action="version", version=VERSION)
    server = env.get("TRNWATCH_SERVER")
    add("--server", default=server, metavar="URL", help="where to send to (TRNWATCH_SERVER)")
    add("--token-file", metavar="FILE", help="the token (TRNWATCH_TOKEN_FILE, TRNWATCH_TOKEN)")
    trusted = env.get("TRNWATCH_CA_FILE")
    add("--ca-file", default=trusted, metavar="FILE", help="whom to trust (TRNWATCH_CA_FILE)")
    add("--node", default=env.get("TRNWATCH_NODE"), help="name; else the instance id")
    add("--command", metavar="LINE", help="run this instead of neuron-monitor")
    add("--stdin", action="store_true", help="read neuron-monitor's reports from standard input")
    add("--no-monitor", action="store_true", help="send EFA and Neuron sysfs only")
    add("--period", type=_seconds, default=1.0, metavar="S", help="seconds between reports (1)")
    add("--every", type=_seconds, default=1.0, metavar="S", help="seconds between requests (1)")
    add("--spool", type=Path, default=Path(env.get("STATE_DIRECTORY") or SPOOL), metavar="DIR")
    add("--spool-mb", type=_spool_mb, default=256.0, metavar="MB", help="at most so much (256)")
    add("--efa-sysfs", type=Path, default=efa.SYSFS, metavar="DIR")
    add("--neuron-sysfs", type=Path, default=neuron.SYSFS, metavar="DIR")
    add("--probe-file", metavar="FILE", help="EFA latencies, one JSON object per line")
    add("--probe-command", metavar="LINE", help="a command that prints them")
    add("--probe-every", type=_seconds, default=60.0, metavar="S", help="how often (60)")
    add("--once", action="store_true", help="send one report, and end")
    add("--dry-run", action="store_true", help="print what would be sent; send nothing")
    return parser


def _seconds(text: str) -> float:
    """Read a number of seconds."""
    value = float(text)
    if not 0.1 <= value <= 3600:
        msg = f"{text} s: give 0.1 to 3600 seconds"
        raise argparse.ArgumentTypeError(msg)
    return value


def _spool_mb(text: str) -> float:
    """Read how large the spool may become."""
    value = float(text)
    if not LEAST_SPOOL_MB <= value <= MOST_SPOOL_MB:
        msg = f"{text} MB: give {LEAST_SPOOL_MB:g} to {MOST_SPOOL_MB:g} megabytes"
        raise argparse.ArgumentTypeError(msg)
    return value
