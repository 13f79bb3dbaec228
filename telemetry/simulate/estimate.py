"""What a job makes of its steps: throughput, utilization of peak, all-reduce share and cost."""

from dataclasses import dataclass

from telemetry.catalog import Model
from telemetry.simulate.anatomy import StepPlan, exposed_allreduce_s, step_plan
from telemetry.simulate.layout import JobError
from telemetry.simulate.plan import Job

__all__ = [
    "Estimate",
    "JobError",
    "StepPlan",
    "estimate",
    "estimate_of",
    "exposed_allreduce_s",
    "step_plan",
]

S_PER_HOUR = 3600
TOKENS_PER_MTOK = 1e6


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job makes of its steps; ``usd_per_mtok`` None where no price is published."""

    step_s: float
    seq_per_s: float
    tokens_per_s: float
    mfu_ratio: float
    allreduce_share_ratio: float
    usd_per_mtok: float | None


def estimate(job: Job, model: Model | None = None) -> Estimate:
    """Predict a job's throughput, utilization of peak, all-reduce share and cost.

    Examples
    --------
    >>> job = Job(model="llama2-7b", instance="trn1.32xlarge", nodes=16, tp=8,
    ...           seq_len=4096, global_batch=1024)
    >>> round(estimate(job).mfu_ratio, 2)
    0.37
    """
    return estimate_of(step_plan(job, model))


def estimate_of(plan: StepPlan) -> Estimate:
    """Return what a job makes of its steps."""
    job, instance = plan.layout.job, plan.layout.instance
    tokens_per_s = plan.tokens / plan.step_s
    usd_per_mtok = None
    if instance.prices:
        usd_per_s = job.nodes * instance.price.usd_per_hour / S_PER_HOUR
        usd_per_mtok = usd_per_s / tokens_per_s * TOKENS_PER_MTOK
    return Estimate(
        step_s=plan.step_s,
        seq_per_s=job.global_batch / plan.step_s,
        tokens_per_s=tokens_per_s,
        mfu_ratio=plan.flops / plan.step_s / (job.nodes * instance.peak_flops(job.precision)),
        allreduce_share_ratio=plan.allreduce_share_ratio,
        usd_per_mtok=usd_per_mtok,
    )
