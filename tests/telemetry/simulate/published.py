"""Published figures to compare the physics with, and the tolerance."""

import csv
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from telemetry.catalog import Model, instance
from telemetry.simulate.communication import collective_time_s
from telemetry.simulate.constants import ChipConstants
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import step_plan

DATA = Path(__file__).parent / "data"


class Unit(NamedTuple):
    name: str
    digits: int


UNITS = {"step_s": Unit("s", 2), "seq_per_s": Unit("seq/s", 1), "tokens_per_s": Unit("tok/s", 0)}


@dataclass(frozen=True)
class TrainingRow:
    """One published training figure: ``use`` is "fit" or "check"."""

    id: str
    job: Job
    model: Model
    quantity: str
    published: float
    use: str
    source: str
    spread: str

    @property
    def group(self) -> tuple[str, str]:
        """Chip and precision: the constants that the row is fitted to or checks."""
        return instance(self.job.instance).chip.name, self.job.precision

    @property
    def error_ratio(self) -> float:
        return self.speed_ratio() - 1

    @property
    def recipe(self) -> str:
        job = self.job
        named = {"tp": job.tp, "pp": job.pp, "cp": job.cp, "vp": job.vp or 1}
        parts = [f"{name} {value}" for name, value in named.items() if value > 1]
        parts += [f"micro-batch {job.micro_batch}", f"recompute {job.recompute}"]
        if job.sequence_parallel is False:
            parts.append("no sequence parallelism")
        return f"{job.seq_len} tokens, batch {job.global_batch}, {', '.join(parts)}"

    @property
    def line(self) -> str:
        """Row of the table in docs/physics.md."""
        job, unit = self.job, UNITS[self.quantity]
        precision = "" if job.precision == "bf16" else f" {job.precision.upper()}"
        cells = (
            self.id,
            f"{self.model.name}{precision}, {job.nodes} {job.instance}: {self.recipe}",
            f"{self.published:,.{unit.digits}f} {unit.name}",
            f"{self.predicted():,.{unit.digits}f}",
            f"{self.error_ratio:+.0%}",
            self.use,
            f"{self.source}; {self.spread}" if self.spread else self.source,
        )
        return f"| {' | '.join(cells)} |"

    def predicted(self, constants: ChipConstants | None = None) -> float:
        plan = step_plan(self.job, self.model, constants=constants)
        return {
            "step_s": plan.step_s,
            "seq_per_s": self.job.global_batch / plan.step_s,
            "tokens_per_s": plan.tokens / plan.step_s,
        }[self.quantity]

    def speed_ratio(self, constants: ChipConstants | None = None) -> float:
        """Predicted over published speed: above 1 is too fast."""
        ratio = self.predicted(constants) / self.published
        return 1 / ratio if self.quantity == "step_s" else ratio


@dataclass(frozen=True)
class CollectiveRow:
    """One published collective."""

    table: str
    name: str
    published_s: float
    predicted_s: float

    @property
    def error_ratio(self) -> float:
        return self.predicted_s / self.published_s - 1


def training_rows() -> Mapping[str, TrainingRow]:
    rows = {}
    for row in read("calibration.csv"):
        counts = {key: int(row[key]) for key in ("layers", "hidden", "heads", "kv_heads", "ffn")}
        kinds = {"bert": "encoder", "vit-": "vision"}
        shape = msgspec.convert(
            counts
            | {
                "name": row["model"],
                "kind": kinds.get(row["model"][:4], "decoder"),
                "params": float(row["params_b"]) * 1e9,
                "vocab": int(row["vocab"]),
                "source": row["source"],
                "date": "2026-08",
            },
            Model,
        )
        named = ("nodes", "tp", "pp", "cp", "vp", "micro_batch", "seq_len", "global_batch")
        layout: dict[str, Any] = {key: int(row[key]) for key in named if row[key]}
        if row["sequence_parallel"]:
            layout["sequence_parallel"] = row["sequence_parallel"] == "1"
        texts = {key: row[key] for key in ("model", "instance", "precision", "recompute")}
        job = msgspec.convert(layout | texts, Job)
        rows[row["id"]] = TrainingRow(
            row["id"],
            job,
            shape,
            row["quantity"],
            float(row["published"]),
            row["use"],
            row["source"],
            row["spread"],
        )
    return rows


def collective_rows() -> list[CollectiveRow]:
    rows = []
    for row in read("collectives.csv"):
        n_bytes, op = int(row["bytes"]), row["op"]
        time = collective_time_s(
            instance(row["instance"]),
            n_nodes=int(row["nodes"]),
            n_ranks=int(row["ranks"]),
            n_bytes=n_bytes,
            op=op,
        )
        name = f"{row['nodes']} x {row['instance']}, {row['ranks']} ranks, {op}, {n_bytes} B"
        rows.append(CollectiveRow(row["table"], name, float(row["time_us"]) / 1e6, time.total_s))
    return rows


def read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.stdout.writelines(f"{row.line}\n" for row in training_rows().values())
