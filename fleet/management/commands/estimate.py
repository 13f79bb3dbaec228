"""`manage.py estimate`: what a training job would do on given hardware, and what it costs."""

import dataclasses
from typing import Any

from django.core.management.base import CommandParser

from fleet.management.cli import MODEL_FLAGS, PlainCommand, described_model
from telemetry.simulate.constants import ASSUMED
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import Estimate, StepPlan, estimate_of, step_plan

GIB = 1024**3


class Command(PlainCommand):
    help = "Predict step time, throughput, MFU, all-reduce share and cost of a training job."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--model", default="custom", help="name in the catalogue, or your own")
        parser.add_argument("--instance", required=True, help="instance type of every node")
        parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
        parser.add_argument("--tp", type=int, default=1, help="tensor-parallel degree (1)")
        parser.add_argument("--pp", type=int, default=1, help="pipeline stages (1)")
        parser.add_argument("--seq-len", type=int, required=True, help="tokens per sequence")
        parser.add_argument(
            "--global-batch", type=int, required=True, help="sequences per step, all replicas"
        )
        parser.add_argument("--precision", default="bf16", help="bf16 (default), fp8, …")
        shape = parser.add_argument_group("a model of your own, or other figures for a known one")
        for flag, (kind, text) in MODEL_FLAGS.items():
            shape.add_argument(f"--{flag.replace('_', '-')}", type=kind, help=text)

    def handle(self, *, json: bool, **options: Any) -> None:
        job = Job(**{field: options[field] for field in Job.__struct_fields__})
        given = {flag: options[flag] for flag in MODEL_FLAGS if options[flag] is not None}
        plan = step_plan(job, described_model(job.model, given))
        found = estimate_of(plan)
        if not plan.fits:
            self.stderr.write(f"warning: {_memory(plan)}; raise tp or pp")
        if json:
            self.write_json(dataclasses.asdict(found))
            return
        layout = plan.layout
        self.stdout.write(
            f"{layout.model.name} on {job.nodes} x {job.instance}, {job.precision}: "
            f"tp {job.tp}, pp {job.pp}, {layout.dp} replicas, "
            f"{layout.micro_batches} x micro-batch {layout.micro_batch}\n"
        )
        self.write_table(_rows(job, plan, found))


def _rows(job: Job, plan: StepPlan, found: Estimate) -> list[tuple[str, str, str]]:
    chip = plan.layout.instance.chip
    peak = chip.peak_flops[job.precision] / 1e12
    prices = plan.layout.instance.prices
    price = prices[0] if prices else None
    rows = [
        ("step", f"{found.step_s:,.3f} s", _phases(plan)),
        ("throughput", f"{found.seq_per_s:,.1f} seq/s", f"{found.tokens_per_s:,.0f} tokens/s"),
        (
            "MFU",
            f"{found.mfu_ratio:.1%}",
            f"of {peak:,.4g} TFLOPS {job.precision} per {chip.name}",
        ),
        ("all-reduce share", f"{found.allreduce_share_ratio:.1%}", "of the step, not hidden"),
        ("memory", f"{plan.device_memory_bytes / GIB:,.1f} GiB", _memory(plan)),
    ]
    if (chip.name, job.precision) in ASSUMED:
        why = f"no speed of {job.precision} on {chip.name} is published to compare with"
        rows.append(("basis", "assumed", why))
    if price is None or found.usd_per_mtok is None:
        return [*rows, ("cost", "unknown", f"no price of {job.instance} is published")]
    basis = f"at {price.usd_per_hour:,.2f} USD/h, {price.basis}, {price.region}, {price.date}"
    return [*rows, ("cost per 1M tokens", f"{found.usd_per_mtok:,.4f} USD", basis)]


def _phases(plan: StepPlan) -> str:
    return ", ".join(f"{name} {spent:,.3f}" for name, spent in plan.phases.items() if spent)


def _memory(plan: StepPlan) -> str:
    has = plan.layout.instance.chip.hbm_bytes / GIB
    word = "fits into" if plan.fits else f"{plan.device_memory_bytes / GIB:,.1f} GiB is more than"
    return f"{word} the {has:,.0f} GiB of one {plan.layout.instance.chip.name}"
