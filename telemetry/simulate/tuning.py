"""The best layouts of a job: all that fit in memory, cheapest first."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import msgspec

from telemetry.catalog import Model
from telemetry.errors import FieldError
from telemetry.simulate.layout import Layout, divisors, named
from telemetry.simulate.plan import RECOMPUTE, Job
from telemetry.simulate.step_model import StepPlan, step_plan

# Beyond these a layout is never best, and the search stays below a second.
MOST_PP, MOST_CP, MOST_MICRO_BATCH = 32, 16, 128
LEAST_CP_TOKENS = 2048
# More over HBM than the estimate of activations can be wrong by.
MEMORY_MARGIN = 1.25


def tuned(job: Job, model: Model | None = None) -> list[StepPlan]:
    """Return the steps of all layouts that fit, fastest first; FieldError if none does.

    ``tp``, ``pp``, ``cp``, ``micro_batch`` and ``recompute`` of the job are not looked at; they
    are what is searched. ``vp`` and ``sequence_parallel`` are kept where the job gives them: only
    layouts that can have them are searched. All layouts use the same nodes, so the fastest is the
    cheapest.
    """
    plain = msgspec.structs.replace(job, tp=1, pp=1, cp=1, micro_batch=None, recompute=None)
    plans = [step_plan(each, model) for each in _fitting(named(plain, model))]
    if not plans:
        kept = [name for name in ("vp", "sequence_parallel") if getattr(job, name) is not None]
        given = "".join(f", {name} {getattr(job, name)}" for name in kept)
        leave = f", or leave out {' and '.join(kept)}" if kept else ""
        raise FieldError(
            "nodes",
            f"no layout of {job.model} fits {job.nodes} x {job.instance} with "
            f"{job.global_batch} sequences of {job.seq_len} tokens{given}; take more nodes, or "
            f"another global_batch{leave}",
        )
    return sorted(plans, key=lambda plan: plan.step_s)


def best_layout(job: Job, model: Model | None = None) -> StepPlan:
    return tuned(job, model)[0]


def check_feasible(plan: StepPlan) -> None:
    """FieldError with a fix for a job that training software would refuse.

    The simulator plays such jobs all the same. What needs somewhat more memory than there is
    passes: the estimate of activations may be wrong by as much.
    """
    heads, tp = plan.layout.model.heads, plan.layout.job.tp
    if heads % tp:
        able = [n for n in divisors(plan.layout.instance.n_cores) if heads % n == 0]
        raise FieldError(
            "tp",
            f"{tp} does not divide the {heads} attention heads of {plan.layout.model.name}; "
            f"take one of {', '.join(map(str, able))}",
        )
    chip = plan.layout.instance.chip
    if plan.device_memory_bytes <= MEMORY_MARGIN * chip.hbm_bytes:
        return
    needs, has = plan.device_memory_bytes / 2**30, chip.hbm_bytes / 2**30
    problem = f"{needs:,.0f} GiB of the {has:,.0f} GiB of one {chip.name} would be needed"
    try:
        fits = best_layout(plan.layout.job, plan.layout.model).layout
    except FieldError as error:
        raise FieldError("nodes", f"{problem}, and no layout fits; take more nodes") from error
    job = fits.job
    context = f", cp {job.cp}" if job.cp > 1 else ""
    raise FieldError(
        "tp",
        f"{problem} with tp {plan.layout.job.tp}, pp {plan.layout.job.pp}; take tp {job.tp}, "
        f"pp {job.pp}{context}, micro_batch {fits.micro_batch}, recompute {fits.recompute}",
    )


def _fitting(known: Layout) -> Iterator[Job]:
    """Yield every layout that divides and leaves a tenth of the memory.

    Of each micro-batch only the least recomputation: more is never faster.
    """
    job, model, ranks = known.job, known.model, known.ranks
    powers = [n for n in divisors(job.seq_len) if n <= MOST_CP and n & (n - 1) == 0]
    contexts = [n for n in powers if n == 1 or job.seq_len / n >= LEAST_CP_TOKENS]
    degrees = [n for n in divisors(known.instance.n_cores) if model.heads % n == 0]
    stages = [n for n in divisors(ranks) if n <= min(MOST_PP, model.layers)]
    if job.sequence_parallel:
        degrees = [n for n in degrees if n > 1]
    if job.vp is not None and job.vp > 1:
        stages = [n for n in stages if n > 1 and -(-model.layers // n) % job.vp == 0]
    for tp, pp, cp in product(degrees, stages, contexts):
        groups, rest = divmod(ranks, tp * pp * cp)
        if rest or job.global_batch % groups:
            continue
        placed = msgspec.structs.replace(job, tp=tp, pp=pp, cp=cp)
        for size in divisors(job.global_batch // groups):
            if size > MOST_MICRO_BATCH:
                break
            sized = replace(known, job=msgspec.structs.replace(placed, micro_batch=size))
            recompute = next((each for each in RECOMPUTE if sized.has_room(each, size)), None)
            if recompute is None:
                break
            yield msgspec.structs.replace(sized.job, recompute=recompute)
