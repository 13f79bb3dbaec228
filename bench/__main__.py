"""`python -m bench [NAME …] [--json]`: run all benchmarks, or those named."""

import importlib
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from bench.installation import installation
from bench.table import collect_json, print_json
from telemetry.simulate.inputs import TIERS

NAMES = (
    "store",
    "history",
    "metrics",
    "ingest",
    "agent",
    "pages",
    "fleet",
    "reporter",
    "bodies",
    "trials",
    "detection",
)
# `detection` includes some healthy hours; `healthy` continues where they stopped. An alert on an
# idle node takes `remote_write` ten minutes; `breaking` keeps the machine busy for as long.
# `start` needs Chromium, and the machine for itself; `evidence` needs recorded step times. `lives`
# plays half an hour.
CHOICES = (
    *(*NAMES, "cost", "healthy", "remote_write", "breaking", "start", "evidence", "noise"),
    *("lives", "scrape", "tabs", "growth"),
)
# Names of earlier releases.
ALIASES = {"door": "ingest"}
KINDS = ("single", "lasting")
HALVES = ("develop", "held-out")
NOISES, FACTORS = ("measured", "steady"), (1.0, 1.5, 2.0)
SEEDS = re.compile(r"\d+:\d+")
OPTIONS = {
    "fleet": ("nodes", "seconds", "runs", "age"),
    "pages": ("nodes", "runs"),
    "scrape": ("nodes", "runs", "rounds"),
    "growth": ("nodes",),
    "tabs": ("nodes", "runs", "seconds"),
    "remote_write": ("seconds",),
    "bodies": ("times",),
    "healthy": ("hours", "tier", "noise", "environment", "recorded", "played"),
    "breaking": ("rounds",),
    "detection": ("tier", "seeds", "kind", "noise", "environment"),
    "evidence": ("folder", "half"),
    "noise": ("folder",),
    "lives": ("life", "tier"),
}


def main(arguments: list[str]) -> int:
    """Run one benchmark here, each of several in a process and its own installation.

    What a benchmark leaves in Redis and in the database must not affect the next one.
    """
    parser = ArgumentParser(prog="python -m bench", description="Measure speed and detection.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHOICES))
    parser.add_argument("--json", action="store_true", help="one JSON object per benchmark")
    parser.add_argument("--nodes", type=int, help="trn2.48xlarge nodes (fleet: 1000, pages: 100)")
    parser.add_argument(
        "--seconds", type=int, help="how long to measure (fleet: 30, remote_write: 780)"
    )
    parser.add_argument("--runs", type=int, help="runs that share the nodes (fleet: 1, pages: 4)")
    parser.add_argument(
        "--age", type=int, help="fleet: seconds that the runs have lasted at the start (660)"
    )
    parser.add_argument("--times", type=int, help="bodies: how often each is sent (10)")
    parser.add_argument(
        "--rounds",
        type=int,
        help="breaking: how often each is broken (5); scrape: how many of 8 parts",
    )
    parser.add_argument("--hours", type=int, help="healthy: hours of 64 nodes to play (24)")
    tiers = (
        *TIERS,
        *(f"{name}+probe" for name, inputs in TIERS.items() if inputs.agent),
        *(f"{name}+trace" for name, inputs in TIERS.items() if inputs.step_reports),
        *(f"{name}+ideal" for name in TIERS),
    )
    parser.add_argument(
        "--tier",
        choices=tiers,
        help="detection, healthy, lives: one input tier only; +probe, +trace: on request; "
        "+ideal: no background",
    )
    parser.add_argument("--seeds", help="detection: seeds a:b of scenarios, b not included")
    parser.add_argument(
        "--kind", choices=KINDS, help="detection: faults of minutes (single) or of half an hour"
    )
    parser.add_argument(
        "--folder",
        help="evidence, noise: recorded step times (evidence: or environment TRNWATCH_STEP_TIMES)",
    )
    parser.add_argument(
        "--noise", choices=NOISES, help="detection, healthy: how steps vary (measured)"
    )
    parser.add_argument(
        "--environment",
        type=float,
        choices=FACTORS,
        help="detection, healthy: factor on rates and sizes of harmless events (1)",
    )
    parser.add_argument(
        "--played",
        choices=("fleets", "matrix"),
        help="healthy: 64 nodes among harmless events, or seven shapes with twelve noises each",
    )
    parser.add_argument(
        "--recorded", help="healthy: a folder of recorded step times, each the pace of an hour"
    )
    parser.add_argument(
        "--half", choices=HALVES, help="evidence: the half of the recorded series (held-out)"
    )
    parser.add_argument("--life", help="lives: the lives to play, by comma (all)")
    given = parser.parse_args(arguments)
    given.names = [ALIASES.get(name, name) for name in given.names]
    if given.seeds is not None and not SEEDS.fullmatch(given.seeds):
        parser.error(f"--seeds: {given.seeds!r} is not a:b. Give two numbers, such as 1000:1020.")
    for name in given.names:
        if name not in CHOICES:
            parser.error(f"{name!r} is not a benchmark. Choose from {', '.join(CHOICES)}.")
    for option in {option: None for options in OPTIONS.values() for option in options}:
        value, of = getattr(given, option), [n for n in OPTIONS if option in OPTIONS[n]]
        if isinstance(value, int) and value < 1:
            parser.error(f"--{option}: {value} is below 1.")
        if value is not None and not set(of) & set(given.names or NAMES):
            parser.error(f"--{option} is an option of {' and '.join(of)}. Name that benchmark.")
    if len(given.names) != 1:
        return max(
            subprocess.run(
                [sys.executable, "-m", "bench", name, *_options_of(name, given)], check=False
            ).returncode
            for name in given.names or NAMES
        )
    [name] = given.names
    chosen = {option: getattr(given, option) for option in OPTIONS.get(name, ())}
    if given.json:
        collect_json()
    with installation() as env:
        figures = importlib.import_module(f"bench.{name}").measure(
            env, **{option: value for option, value in chosen.items() if value is not None}
        )
    if given.json:
        print_json(name, figures)
    return exit_code(figures)


def exit_code(figures: Mapping[str, Any] | None) -> int:
    """Return 1 where a benchmark that judges what it played says that something is wrong."""
    return int(bool((figures or {}).get("n_wrong")))


def _options_of(name: str, given: Namespace) -> list[str]:
    options = {f"--{each}": getattr(given, each) for each in OPTIONS.get(name, ())}
    pairs = [f"{option}={value}" for option, value in options.items() if value is not None]
    return pairs + ["--json"] * given.json


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
