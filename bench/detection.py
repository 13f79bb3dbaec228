"""Detection quality on simulated scenarios, compared with published figures."""

import ast
import json
import math
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from bench.random_scenarios import TUNING_SEEDS
from bench.scenario_grid import grid_scenarios
from bench.table import print_table
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.inputs import TIERS
from telemetry.units import DAY_S

ROOT = Path(__file__).resolve().parents[1]
# Healthy hours add up from one measurement to the next.
CACHE = ROOT / "var" / "bench"
N_PROCESSES = 2
TIMEOUT_S = {"set": 480.0, "unseen": 180.0, "calm": 90.0}
# More than fit into TIMEOUT_S: time limits how many are played.
N_UNSEEN, N_HEALTHY = 200, 60
# More hours than are ever played.
HEALTHY = tuple(f"hooks-{i}" for i in range(100_000))
MOST_MISSES = 40
Outcome = Mapping[str, Any]
CODE = {".py", ".toml"}
AIMS = {
    "precision": ">= 0.97",
    "recall": ">= 0.97",
    "localisation": ">= 0.97",
    "cause": ">= 0.95",
    "in time": ">= 0.90",
}
# What others report; theirs were faults of production fleets, ours are simulated.
OTHERS = (
    (
        "Minder, NSDI 2025",
        "precision 0.904, F1 0.893; 3.6 s reaction; production, a vendor's fleet",
    ),
    ("Greyhound, ATC 2025", "> 0.99 of fail-slows detected, labelled manually; 27 large jobs"),
    ("Mycroft, SOSP 2025", "anomaly within 15 s in 90 %, root cause within 20 s in 60 %"),
    ("Holmes, NSDI 2025", "localisation 0.972, 30.3 s; simulated"),
    ("Lablup, arXiv:2605.09370", "10 of 10 GPU failures, 0.84 false positives per day, 63 nodes"),
    ("RCA on LLM serving, arXiv:2603.02057", "right cause first in up to 0.77; injected faults"),
)


# The last of the seeds of the published table per tier; waiting cores are idle or busy in turn.
TIER_SEEDS = (48_000, 48_012)
# What is aimed at per tier: least share noticed, of the right place, most of wrong nodes, least of
# the right cause, and to notice within these seconds or steps, whichever is longer.
TIER_AIMS = {
    "full": (0.98, 0.98, 0.0, 0.97, 15.0, 2.0),
    "agent_collectives": (0.97, 0.95, 0.0, 0.85, 15.0, 2.0),
    "agent_trace": (0.97, 0.95, 0.0, 0.85, 15.0, 2.0),
    "agent_hooks": (0.90, 0.75, 0.01, 0.60, 30.0, 4.0),
    "hooks_only": (0.85, 0.60, 0.01, 0.40, 30.0, 4.0),
    "agent_only": (0.75, 0.60, 0.01, 0.50, 60.0, 0.0),
    "prometheus_15s": (0.65, 0.50, 0.01, 0.40, 90.0, 0.0),
}
LEAST_PRECISION = 0.97
# The rows of that table: tiers, also with what alerts request of agents and of jobs.
ROWS = (
    *TIERS,
    *("agent_collectives+probe", "agent_trace+probe"),
    *("agent_hooks+trace", "hooks_only+trace"),
)


def measure(
    env: Mapping[str, str],
    *,
    tier: str | None = None,
    seeds: str | None = None,
    kind: str = "single",
    noise: str = "measured",
    environment: float = 1.0,
) -> dict[str, Any]:
    """Print quality per input tier; without any option, also the set and healthy hours."""
    first, last = (int(part) for part in seeds.split(":")) if seeds else TIER_SEEDS
    varied = variation(noise, environment)
    figures = {
        name: measure_tier(env, name, range(first, last), kind=kind, varied=varied)
        for name in ([tier] if tier else ROWS)
    }
    print_table(
        "Detection per input tier: noticed, right place, wrong node, right cause, noticed in the "
        "time aimed at, p90, p90 over that time, precision, actionable, kept until the end",
        [row for name, each in figures.items() for row in tier_rows(name, each)],
    )
    if tier is None and seeds is None and kind == "single" and not varied:
        measure_set(env)
    return {
        "bench": "detection",
        "kind": kind,
        "seeds": [first, last],
        "noise": noise,
        "environment": environment,
        "tiers": figures,
    }


def variation(noise: str, environment: float) -> str:
    """Return what a scenario's name says of its noise; nothing of what is the default."""
    more = "" if environment == 1.0 else f"+environment={environment:g}"
    return more if noise == "measured" else f"+{noise}{more}"


def measure_tier(
    env: Mapping[str, str], tier: str, seeds: Sequence[int], *, kind: str, varied: str = ""
) -> dict[str, Any]:
    """Play one fault after the other at a tier, on from where the last measurement stopped."""
    names = [f"{kind}-{seed}@{tier}{'+busy' if seed % 2 else ''}{varied}" for seed in seeds]
    cache = CACHE / f"tiers-{state_of_code():08x}.jsonl"
    known = {each["scenario"]: each for each in read_cache(cache)}
    missing = [name for name in names if name not in known]
    new = play(missing, env, timeout_s=math.inf, note=partial(append_cache, cache))
    known |= {each["scenario"]: each for each in new}
    return tier_figures([known[name] for name in names], *TIER_AIMS[tier.partition("+")[0]][4:])


def tier_figures(answers: Sequence[Outcome], seconds: float, steps: float) -> dict[str, Any]:
    """Add up the outcomes of one tier; the figures are in docs/runbooks/input-tiers.md.

    A fault is to be noticed within so many ``seconds``, or ``steps`` if these take longer.
    """
    outcomes = [answer for answer in answers if "error" not in answer]
    faults = [fault for outcome in outcomes for fault in outcome["faults"] if fault["counts"]]
    noticed = [fault for fault in faults if fault["delay_s"] is not None]
    single = [fault for fault in noticed if fault["is_single"]]
    alerts = [alert for outcome in outcomes for alert in outcome["alerts"]]
    delays = [fault["delay_s"] for fault in noticed]
    of_limit = [
        fault["delay_s"] / max(seconds, steps * (fault["step_s"] or 0.0)) for fault in noticed
    ]
    return {
        "scenarios": len(outcomes),
        "hours": sum(outcome["duration_s"] for outcome in outcomes) / 3600,
        "errors": len(answers) - len(outcomes),
        "faults": len(faults),
        "noticed": _mean([fault["delay_s"] is not None for fault in faults]),
        "right_place": _mean([fault["is_placed"] for fault in single]),
        "wrong_node": _mean([alert["is_wrong_node"] for alert in alerts]),
        "right_cause": _mean([fault["is_named"] for fault in noticed]),
        "in_time": sum(each <= 1.0 for each in of_limit) / len(faults) if faults else None,
        "p90_s": float(np.percentile(delays, 90)) if delays else None,
        "p90_of_limit": float(np.percentile(of_limit, 90)) if of_limit else None,
        "precision": _mean([alert["became"] == "notice" for alert in alerts]),
        # Alerts that a person can act on: about a fault, with no wrong cause and no healthy node.
        "actionable": _mean(
            [alert["became"] == "notice" and not alert["misleads"] for alert in alerts]
        ),
        "kept": _mean([fault["is_kept"] for fault in noticed if fault["is_kept"] is not None]),
    }


def tier_rows(tier: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the figures of a tier, and below those of a whole tier what is aimed at."""
    yield tier, tier_row(figures)
    if tier in TIER_AIMS:
        noticed, place, wrong, cause, seconds, steps = TIER_AIMS[tier]
        time = f"{seconds:.0f} s" + (f" or {steps:.0f} steps" if steps else "")
        shares = f"{noticed:6.3f} {place:6.3f} {wrong:6.3f} {cause:6.3f}"
        yield "  aim", f"{shares}  p90 in {time}, precision {LEAST_PRECISION}"


def tier_row(figures: Mapping[str, Any]) -> str:
    shares = (
        "   -  " if figures[key] is None else f"{figures[key]:6.3f}"
        for key in ("noticed", "right_place", "wrong_node", "right_cause")
    )
    p90 = "-" if figures["p90_s"] is None else f"{figures['p90_s']:.0f} s"
    in_time, *others = (
        "-" if figures[key] is None else f"{figures[key]:.3f}"
        for key in ("in_time", "p90_of_limit", "precision", "actionable", "kept")
    )
    played = f"{figures['faults']} faults in {figures['hours']:.1f} h"
    return f"{' '.join(shares)}  {in_time}  {p90:>6}  {'  '.join(others)}   {played}"


def _mean(flags: Sequence[bool]) -> float | None:
    return float(np.mean(flags)) if flags else None


def measure_set(env: Mapping[str, str]) -> None:
    """Play the set, unseen scenarios and healthy hours, and print how well each went."""
    # Shuffled, the same each time: if time ends first, those that were played are a sample.
    names = sorted(grid_scenarios(), key=lambda name: zlib.crc32(name.encode()))
    print_quality("the set", play(names, env, timeout_s=TIMEOUT_S["set"]))
    unseen = [f"chance-{TUNING_SEEDS + i}" for i in range(N_UNSEEN)]
    print_quality("unseen scenarios", play(unseen, env, timeout_s=TIMEOUT_S["unseen"]))
    healthy(env, timeout_s=TIMEOUT_S["calm"])
    print_table("Published figures, in production unless noted", OTHERS)


def healthy(
    env: Mapping[str, str],
    *,
    timeout_s: float,
    most: int = N_HEALTHY,
    names: Sequence[str] = HEALTHY,
    what: str = "at agent_hooks, half of it with noisy steps",
) -> dict[str, Any]:
    """Play healthy hours that are not known yet, and print all so far.

    Each hour is kept when it is over: a measurement that is ended goes on from there. Hours that
    another state of the code has played do not count for this one.
    """
    cache = CACHE / f"healthy-{state_of_code():08x}.jsonl"
    known = {each["scenario"]: each for each in read_cache(cache)}
    before = [known[name] for name in names if name in known]
    hours = [name for name in names if name not in known][:most]
    new = play(hours, env, timeout_s=timeout_s, note=partial(append_cache, cache))
    return print_healthy([*before, *new], what)


def append_cache(path: Path, outcome: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        # A line of its own, also after one that was cut off.
        file.write("\n" + json.dumps(outcome))


def read_cache(path: Path) -> list[Outcome]:
    """Return what earlier measurements played; a line that was cut off is left out."""
    outcomes = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            outcomes.append(json.loads(line))
    return outcomes


# What is played, what detection reads of it, what finds alerts, and what is counted.
PLAYED = (
    "bench/drill_worker.py bench/healthy_runs.py bench/random_scenarios.py bench/scenario_grid.py",
    "scenarios/matrix.toml telemetry/catalog telemetry/blocks.py telemetry/steps.py",
    "telemetry/detect telemetry/evidence telemetry/simulate",
    "telemetry/statistics telemetry/ingest/timing.py",
    "telemetry/store/packing.py telemetry/store/playback.py fleet/models/alert.py",
    "fleet/alerts/correlation.py fleet/alerts/evaluate.py fleet/alerts/events.py",
    "fleet/alerts/probe_requests.py fleet/alerts/reconcile.py fleet/alerts/trace_requests.py",
    "fleet/simulation/ground_truth.py fleet/simulation/replay.py fleet/simulation/runs.py",
    "fleet/simulation/scoring.py drills",
)


def state_of_code() -> int:
    """Return a number that differs where what finds alerts, or what is played, does.

    Comments, docstrings and layout do not count.
    """
    paths = [ROOT / name for line in PLAYED for name in line.split()]
    files = [each for path in paths for each in (path.rglob("*.*") if path.is_dir() else [path])]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.suffix in CODE}
    return zlib.crc32("".join(without_prose(texts[path], path) for path in sorted(texts)).encode())


def without_prose(text: str, path: Path) -> str:
    """Return what a file does: TOML unchanged, Python without comments and docstrings."""
    if path.suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not is_prose(each)]
    return ast.dump(tree)


def is_prose(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def print_quality(title: str, answers: Sequence[Outcome]) -> None:
    """Print how well the faults of some scenarios were noticed."""
    outcomes = [answer for answer in answers if "error" not in answer]
    faults = [fault for outcome in outcomes for fault in outcome["faults"] if fault["counts"]]
    played_s = sum(outcome["duration_s"] for outcome in outcomes)
    took_s = sum(outcome["took_s"] for outcome in outcomes)
    heading = (
        f"Detection, {title}: {len(outcomes)} played, {played_s / 3600:.1f} h at "
        f"{played_s / max(took_s, 1e-9):.0f} times real time each; {len(faults)} faults that count"
    )
    print_table(heading, summary(outcomes, faults))
    print_table("By kind: noticed, placed, named, in time; seconds to detect", kinds(faults))
    for broken in (answer for answer in answers if "error" in answer):
        print_table(f"{broken['scenario']} broke detection", [("error", broken["error"])])
    misses = list(misses_of(outcomes))
    if misses:
        print_table(f"What was wrong, of {len(misses)}", misses[:MOST_MISSES])


def most_pages(n: int, *, confidence: float = 0.95) -> float:
    """Upper bound of the mean of a Poisson distribution of which ``n`` was drawn."""
    low, high = 0.0, 10.0 + 3.0 * n
    for _ in range(60):
        mean = (low + high) / 2
        terms = np.cumprod([math.exp(-mean), *(mean / k for k in range(1, n + 1))])
        low, high = (mean, high) if terms.sum() > 1 - confidence else (low, mean)
    return high


def print_healthy(outcomes: Sequence[Outcome], what: str) -> dict[str, Any]:
    """Print how often healthy runs caused pages; return the figures."""
    broken = [outcome for outcome in outcomes if "error" in outcome]
    outcomes = [outcome for outcome in outcomes if "error" not in outcome]
    days = sum(outcome["duration_s"] for outcome in outcomes) / DAY_S
    alerts = [alert for outcome in outcomes for alert in outcome["alerts"]]
    pages = sum(alert["is_page"] for alert in alerts)
    bound = most_pages(pages) / days if days else math.inf
    per_day = f"{pages / days:.2f} per day" if days else "none played"
    rows = [
        ("played", f"{days:.2f} days of 64 nodes {what}"),
        ("false pages", f"{pages}, {per_day}"),
        ("at 95 % confidence", f"at most {bound:.2f} per day   aim <= 0.1"),
        ("other alerts", str(len(alerts) - pages)),
        *((outcome["scenario"], outcome["error"]) for outcome in broken),
    ]
    print_table("Healthy runs", rows)
    misses = list(misses_of(outcomes))
    if misses:
        print_table("What fired in them", misses[:MOST_MISSES])
    return {
        "days": days,
        "pages": pages,
        "alerts": len(alerts),
        "most_pages_per_day": bound if days else None,
        "errors": len(broken),
        "fired": [list(each) for each in misses],
    }


def play(
    names: Sequence[str],
    env: Mapping[str, str],
    *,
    timeout_s: float,
    note: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Play scenarios by name until the time is over; a process that is done gets the next.

    ``note`` receives each outcome when its scenario is over.
    """
    waiting, lock, ends_s = iter(names), Lock(), time.monotonic() + timeout_s
    outcomes: dict[str, Outcome] = {}

    def following() -> str | None:
        with lock:
            return next(waiting, None) if time.monotonic() < ends_s else None

    def work(worker: subprocess.Popen[str]) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        while (name := following()) is not None:
            worker.stdin.write(f"{name}\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
            if not answer:
                return
            with lock:
                outcomes[name] = json.loads(answer)
                note(outcomes[name])

    command = [sys.executable, "-m", "bench.drill_worker", str(timeout_s)]
    workers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(env)
        )
        for _ in range(min(N_PROCESSES, len(names)))
    ]
    with ThreadPoolExecutor(N_PROCESSES) as threads:
        list(threads.map(work, workers))
    # The end of its input ends a worker.
    for worker in workers:
        worker.communicate()
    if any(worker.returncode for worker in workers):
        sys.exit("a scenario could not be played; what went wrong stands above")
    return [outcomes[name] for name in names if name in outcomes]


def summary(outcomes: Sequence[Outcome], faults: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Yield the figures over everything, each with its aim."""
    alerts = [alert for outcome in outcomes for alert in outcome["alerts"]]
    noticed = [fault for fault in faults if fault["delay_s"] is not None]
    figures = {
        "precision": _share([alert["became"] != "false" for alert in alerts]),
        "recall": _share([fault["delay_s"] is not None for fault in faults]),
        "localisation": _share([fault["is_placed"] for fault in noticed]),
        "cause": _share([fault["is_named"] for fault in noticed]),
        "in time": _share([fault["is_in_time"] for fault in noticed]),
    }
    for name, figure in figures.items():
        yield name, f"{figure}   aim {AIMS[name]}"
    yield "time to detect", _delays(noticed)
    yield "noticed twice or more", str(sum(alert["became"] == "again" for alert in alerts))


def kinds(faults: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Yield a row for every kind of fault."""
    for kind in FAULTS:
        mine = [fault for fault in faults if fault["kind"] == kind]
        noticed = [fault for fault in mine if fault["delay_s"] is not None]
        shares = (
            _share([fault["delay_s"] is not None for fault in mine]),
            *(
                _share([f[key] for f in noticed])
                for key in ("is_placed", "is_named", "is_in_time")
            ),
        )
        yield kind, f"{len(mine):3d} faults   {'   '.join(shares)}   {_delays(noticed)}"


def misses_of(outcomes: Iterable[Outcome]) -> Iterator[tuple[str, str]]:
    """Yield every fault that was missed, misplaced, misnamed or late, and every false alert."""
    for outcome in outcomes:
        for fault in outcome["faults"]:
            if fault["counts"] and (wrong := _wrong_with(fault)):
                yield outcome["scenario"], f"{_described(fault)}: {wrong}"
        for alert in outcome["alerts"]:
            if alert["became"] != "notice":
                where = f"{alert['node']}/{alert['device']} at {alert['fired_s']:.0f} s"
                yield (
                    outcome["scenario"],
                    f"{alert['became']}: {alert['rule']}/{alert['cause']} {where}",
                )


def _wrong_with(fault: Outcome) -> str:
    if fault["delay_s"] is None:
        return "MISSED"
    label = {"is_placed": "misplaced", "is_named": "misnamed", "is_in_time": "late"}
    wrong = [label for key, label in label.items() if not fault[key]]
    return f"{', '.join(wrong)} ({fault['alert']}, {fault['delay_s']:.0f} s)" if wrong else ""


def _described(fault: Outcome) -> str:
    cost = "no step got on" if fault["ratio"] is None else f"steps x {fault['ratio']:.2f}"
    at = f"{fault['node']}/{fault['device']} {fault['start_s']:.0f}-{fault['end_s']:.0f} s"
    return f"{fault['kind']} {fault['magnitude']:g} {at}, {cost}"


def _share(flags: Sequence[bool]) -> str:
    return f"{np.mean(flags):.3f}" if flags else "  -  "


def _delays(noticed: Sequence[Outcome]) -> str:
    if not noticed:
        return "-"
    p50, p90 = np.percentile([fault["delay_s"] for fault in noticed], [50, 90])
    return f"p50 {p50:.0f} s, p90 {p90:.0f} s"
