"""How far the layout of an arm is from the best one on its nodes, by the step model."""

from functools import lru_cache

import msgspec

from fleet.models import Run
from fleet.runs.similar_runs import job_of
from telemetry import catalog
from telemetry.simulate.constants import SPREADS
from telemetry.simulate.layout import Layout
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import step_plan
from telemetry.simulate.tuning import best_layout

# Below this the comparison is of the hardware; above, of the layouts too.
WARNING_RATIO = 0.05
USUAL_PRECISION = "bf16"


class Parallelism(msgspec.Struct, frozen=True, kw_only=True):
    """A layout; None where it is not reported."""

    tp: int
    pp: int
    cp: int
    micro_batch: int | None
    recompute: str | None

    @property
    def text(self) -> str:
        parts = [f"tp {self.tp}", f"pp {self.pp}"]
        parts += [f"cp {self.cp}"] if self.cp > 1 else []
        parts += [] if self.micro_batch is None else [f"micro-batch {self.micro_batch}"]
        return ", ".join([*parts, *([f"recompute {self.recompute}"] if self.recompute else [])])


class ArmLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The layout and software of an arm, and how much dearer a token is than at its best layout.

    ``above_best_ratio`` is estimated by the step model, not measured; None where the model or
    the instance is unknown to it, and ``best`` with it. What the run does not report of its
    layout is taken as the usual recipe has it. ``spread_ratio`` is the error of one estimate in
    9 of 10 cases.
    """

    used: Parallelism
    software: str = ""
    best: Parallelism | None = None
    above_best_ratio: float | None = None
    spread_ratio: float | None = None

    @property
    def is_far(self) -> bool:
        """Whether the arm should run another layout before it is compared."""
        return self.above_best_ratio is not None and self.above_best_ratio > WARNING_RATIO


def arm_layout(run: Run) -> ArmLayout:
    """Describe a run; a simulated run does what the step model chose for it."""
    # Without a reported precision the usual one, as for the share of the peak.
    job = job_of(run, precision=run.precision or USUAL_PRECISION)
    used = Parallelism(
        tp=run.tp, pp=run.pp, cp=job.cp, micro_batch=job.micro_batch, recompute=job.recompute
    )
    versions = {"Neuron SDK": run.sdk_version, "neuronx-cc": run.compiler_version}
    software = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    compared = _best(job) if run.model in catalog.models() and not run.shape else None
    if compared is None:
        return ArmLayout(used=used, software=software)
    mine, best, above_ratio = compared
    return ArmLayout(
        used=mine if run.is_simulated else used,
        software=software,
        best=best,
        above_best_ratio=above_ratio,
        spread_ratio=SPREADS[catalog.instance(run.instance_type).chip.name][1],
    )


@lru_cache(maxsize=256)
def _best(job: Job) -> tuple[Parallelism, Parallelism, float] | None:
    """Return the layout of a job, its best one, and the distance; None where no layout fits."""
    try:
        # The best of all layouts: what the run itself interleaves or splits is no limit.
        free = msgspec.structs.replace(job, vp=None, sequence_parallel=None)
        plan, best = step_plan(job), best_layout(free)
    except ValueError:
        return None
    above_ratio = max(0.0, plan.step_s / best.step_s - 1)
    return _parallelism(plan.layout), _parallelism(best.layout), above_ratio


def _parallelism(layout: Layout) -> Parallelism:
    job = layout.job
    return Parallelism(
        tp=job.tp, pp=job.pp, cp=job.cp, micro_batch=layout.micro_batch, recompute=layout.recompute
    )
