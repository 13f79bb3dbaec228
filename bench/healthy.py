"""False pages per hour of healthy runs."""

import csv
from collections.abc import Mapping
from typing import Any

from bench.detection import HEALTHY, healthy, variation
from bench.evidence import recordings

TIMEOUT_S = 8 * 3600.0
PLAYED = {"fleets": HEALTHY, "matrix": [f"matrix-{i}" for i in range(10_000)]}


def measure(
    env: Mapping[str, str],
    *,
    hours: int = 24,
    tier: str = "agent_hooks",
    noise: str = "measured",
    environment: float = 1.0,
    recorded: str = "",
    played: str = "fleets",
) -> dict[str, Any]:
    """Play more healthy hours of 64 nodes, or of a matrix of shapes and noises; print all so far.

    With a folder of recorded step times, each healthy series in it is the pace of an hour.
    """
    varied = variation(noise, environment)
    is_usual = played == "fleets" and tier == "agent_hooks" and not varied
    chosen = f"@{tier}+busy{varied}"
    names = HEALTHY if is_usual else [name + chosen for name in PLAYED[played]]
    what = f"of the {played} at {tier}, noise: {noise}"
    # The matrix is of noises alone.
    is_alone = played == "matrix" and environment == 1.0
    what += ", no harmless events" if is_alone else f", environment x {environment:g}"
    if recorded:
        folder = recordings(recorded, env, option="--recorded").resolve()
        with (folder / "MANIFEST.csv").open(encoding="utf-8") as file:
            series = [row["name"] for row in csv.DictReader(file) if row["label"] == "healthy"]
        # Hours without look-alikes, on all fleets in turn.
        names = [
            f"hooks-{3 * i + 1}{chosen}+recorded={folder / name}.csv"
            for i, name in enumerate(series)
        ]
        what += f", paces: {len(series)} recorded series"
    figures = healthy(env, timeout_s=TIMEOUT_S, most=hours, names=names, what=what)
    chosen_by = {"tier": tier, "noise": noise, "environment": environment, "recorded": recorded}
    return {"bench": "healthy", "played": played} | chosen_by | figures
