"""`manage.py estimate`: what a training job would do on given hardware, and what it costs."""

import dataclasses
from argparse import BooleanOptionalAction
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser

from fleet.management.cli import MODEL_FLAGS, PlainCommand, described_model
from telemetry.simulate.plan import RECOMPUTE, Job
from telemetry.simulate.step_model import Estimate, StepPlan, estimate_of, step_plan
from telemetry.simulate.tuning import check_feasible, tuned
from telemetry.units import GIB

SHOWN_LAYOUTS = 10
BASES = {
    "published": "constants fitted to published runs of this chip and precision",
    "assumed": "no published run of this chip and precision to compare with",
}


class Command(PlainCommand):
    help = "Predict step time, throughput, MFU, all-reduce share and cost of a training job."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", default="custom", help="name in the catalogue, or your own")
        parser.add_argument("--instance", required=True, help="instance type of every node")
        parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
        parser.add_argument("--tp", type=int, default=1, help="tensor-parallel degree (1)")
        parser.add_argument("--pp", type=int, default=1, help="pipeline stages (1)")
        parser.add_argument("--cp", type=int, default=1, help="context-parallel degree (1)")
        parser.add_argument("--vp", type=int, help="pieces of each stage, interleaved")
        parser.add_argument("--seq-len", type=int, required=True, help="tokens per sequence")
        parser.add_argument(
            "--global-batch", type=int, required=True, help="sequences per step, all replicas"
        )
        parser.add_argument("--micro-batch", type=int, help="sequences computed at once")
        parser.add_argument("--precision", default="bf16", help="bf16 (default), fp8, …")
        parser.add_argument(
            "--sequence-parallel",
            action=BooleanOptionalAction,
            default=None,
            help="split norms and residuals too (with tp above 1)",
        )
        parser.add_argument("--recompute", help=f"{', '.join(RECOMPUTE)}: in the backward pass")
        parser.add_argument(
            "--tune",
            action="store_true",
            help="list the best layouts that fit in memory; --tp, --pp, --cp, --micro-batch and "
            "--recompute are searched, --vp and --sequence-parallel are kept if given",
        )
        shape = parser.add_argument_group("a model of your own, or other figures for a known one")
        for flag, (kind, text) in MODEL_FLAGS.items():
            shape.add_argument(f"--{flag.replace('_', '-')}", type=kind, help=text)

    def handle(self, *, json: bool, tune: bool, **options: Any) -> None:
        job = Job(**{field: options[field] for field in Job.__struct_fields__})
        given = {flag: options[flag] for flag in MODEL_FLAGS if options[flag] is not None}
        model = described_model(job.model, given)
        if tune:
            self._print_layouts(tuned(job, model), json=json)
            return
        plan = step_plan(job, model)
        check_feasible(plan)
        estimate = estimate_of(plan)
        if not plan.fits:
            self.stderr.write(f"warning: {_memory(plan)}; raise tp or pp, or recompute more")
        if json:
            self.write_json(dataclasses.asdict(estimate) | _more(plan))
            return
        self.stdout.write(f"{_job(plan)}\n{_chosen(plan)}")
        self.write_table(_rows(plan, estimate))

    def _print_layouts(self, plans: Sequence[StepPlan], *, json: bool) -> None:
        layouts = [_layout(plan) for plan in plans]
        if json:
            self.write_json({"layouts": layouts})
            return
        best = plans[0]
        self.stdout.write(f"{len(plans)} layouts of {_job(best, short=True)} fit in memory\n")
        self.write_table(
            (_layout_text(plan), f"{plan.step_s:,.3f} s", _dearer(plan, best))
            for plan in plans[:SHOWN_LAYOUTS]
        )


def _layout(plan: StepPlan) -> dict[str, Any]:
    layout, estimate = plan.layout, estimate_of(plan)
    degrees = {name: getattr(layout.job, name) for name in ("tp", "pp", "cp")}
    return degrees | {
        "vp": layout.vp,
        "micro_batch": layout.micro_batch,
        "recompute": layout.recompute,
        "usd_per_mtok": estimate.usd_per_mtok,
        "step_s": estimate.step_s,
        "memory_bytes": plan.device_memory_bytes,
    }


def _layout_text(plan: StepPlan) -> str:
    layout = plan.layout
    job = layout.job
    parts = [f"tp {job.tp}", f"pp {job.pp}"]
    parts += [f"cp {job.cp}"] if job.cp > 1 else []
    parts += [f"vp {layout.vp}"] if layout.vp > 1 else []
    parts += [f"micro-batch {layout.micro_batch}", f"recompute {layout.recompute}"]
    return ", ".join(parts)


def _dearer(plan: StepPlan, best: StepPlan) -> str:
    cost = estimate_of(plan).usd_per_mtok
    price = "" if cost is None else f"{cost:,.4f} USD per 1M tokens, "
    return f"{price}{plan.step_s / best.step_s - 1:.1%} above the best"


def _more(plan: StepPlan) -> dict[str, Any]:
    """Figures beyond those of an Estimate; ``chosen`` is what the options left out."""
    return {
        "memory_bytes": plan.device_memory_bytes,
        "fits": plan.fits,
        "load_s": plan.load_s,
        "warm_up_s": plan.warm_up_s,
        "first_step_s": plan.first_step_s,
        "chosen": dict(plan.layout.chosen),
    }


def _job(plan: StepPlan, *, short: bool = False) -> str:
    layout = plan.layout
    job = layout.job
    text = f"{layout.model.name} on {job.nodes} x {job.instance}, {job.precision}"
    if short:
        return text
    return (
        f"{text}: tp {job.tp}, pp {job.pp}, {layout.dp} replicas, "
        f"{layout.micro_batches} x micro-batch {layout.micro_batch}"
    )


def _chosen(plan: StepPlan) -> str:
    words = {True: "on", False: "off"}
    parts = [
        f"{name.replace('_', ' ')} {words.get(value, value) if isinstance(value, bool) else value}"
        for name, value in plan.layout.chosen.items()
    ]
    return f"  chosen: {', '.join(parts)}\n" if parts else ""


def _rows(plan: StepPlan, found: Estimate) -> list[tuple[str, str, str]]:
    job, chip = plan.layout.job, plan.layout.instance.chip
    peak = chip.peak_flops[job.precision] / 1e12
    prices = plan.layout.instance.prices
    price = prices[0] if prices else None
    phases = ", ".join(f"{name} {spent:,.3f}" for name, spent in plan.phases.items() if spent)
    rows = [
        ("step", f"{found.step_s:,.3f} s", phases),
        (
            "spread",
            f"± {found.spread_ratio:.0%}",
            f"error of 9 in 10 published runs that were not fitted; "
            f"of half {found.median_error_ratio:.0%}",
        ),
        ("basis", found.basis, BASES[found.basis]),
        (
            "first step",
            f"{plan.first_step_s:,.3f} s",
            f"{plan.load_s:,.0f} s of loading before it (assumed)",
        ),
        ("throughput", f"{found.seq_per_s:,.1f} seq/s", f"{found.tokens_per_s:,.0f} tokens/s"),
        (
            "MFU",
            f"{found.mfu_ratio:.1%}",
            f"of {peak:,.4g} TFLOPS {job.precision} per {chip.name}; attention counted in full",
        ),
        ("MFU, causal", f"{found.mfu_causal_ratio:.1%}", "only the attention that a mask leaves"),
        ("all-reduce share", f"{found.allreduce_share_ratio:.1%}", "of the step, not hidden"),
        ("memory", f"{plan.device_memory_bytes / GIB:,.1f} GiB", _memory(plan)),
    ]
    if price is None or found.usd_per_mtok is None:
        return [*rows, ("cost", "unknown", f"no price of {job.instance} is published")]
    basis = f"at {price.usd_per_hour:,.2f} USD/h, {price.basis}, {price.region}, {price.date}"
    return [*rows, ("cost per 1M tokens", f"{found.usd_per_mtok:,.4f} USD", basis)]


def _memory(plan: StepPlan) -> str:
    has = plan.layout.instance.chip.hbm_bytes / GIB
    word = "fits into" if plan.fits else f"{plan.device_memory_bytes / GIB:,.1f} GiB is more than"
    return f"{word} the {has:,.0f} GiB of one {plan.layout.instance.chip.name}"
