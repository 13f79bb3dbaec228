"""`manage.py import_trace`: a recorded trace as a run, and what slowed it down."""

import math
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from fleet.management.cli import PlainCommand
from fleet.models import RecordedTrace
from fleet.runs.imported import verdict_caveats, verdict_text
from importers.store.traces import TraceOptions, check_name, save_trace
from importers.traces import read_trace
from importers.traces.what_if import analyse_trace

KEYS = (
    "step_s",
    "slowdown_ratio",
    "m_w",
    "m_s",
    "allreduce_share_ratio",
    "wait_share_ratio",
    "transfer_share_ratio",
)


class Command(PlainCommand):
    help = (
        "Import a recorded trace (table of operations, Kineto, Neuron Explorer, neuron-profile, "
        "NCCL Inspector) as a run, with a verdict."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "file", nargs="+", metavar="FILE", help="a trace: a file, one per rank, or a folder"
        )
        parser.add_argument("--run", required=True, help="name of the run it becomes")
        parser.add_argument(
            "--replace", action="store_true", help="replace an earlier import of that name"
        )
        parser.add_argument("--model", default="", help="name of the model, for the page")
        parser.add_argument("--instance", default="", help="instance type, for the page")
        parser.add_argument("--nodes", type=int, default=0, help="number of nodes, for the page")

    def handle(self, *, json: bool, **options: Any) -> None:
        if options["nodes"] < 0:
            raise ValueError(f"--nodes: {options['nodes']} is negative; give 0 or more.")
        check_name(options["run"], is_replaced=options["replace"])
        paths = [Path(name) for name in options["file"]]
        try:
            trace = read_trace(paths)
        except OSError as error:
            raise ValueError(f"FILE: {error.filename}: {error.strerror}") from error
        analysis = analyse_trace(trace, run=options["run"])
        about = TraceOptions(
            run=options["run"],
            file=paths[0].name,
            trace=trace,
            model=options["model"],
            instance=options["instance"],
            n_nodes=options["nodes"],
        )
        kept = save_trace(analysis, about, is_replaced=options["replace"], now=timezone.now())
        for doubt in verdict_caveats(kept):
            self.stderr.write(f"warning: {doubt}")
        if json:
            self.write_json(_answer(kept))
            return
        self.stdout.write(f"{kept.run}: {verdict_text(kept)}\n\n")
        self.write_table(_rows(kept))


def _answer(kept: RecordedTrace) -> dict[str, object]:
    """Return the object that docs/traces.md describes."""
    answer: dict[str, object] = {
        "run": kept.run.name,
        "workers": kept.n_workers,
        "steps": kept.n_steps,
    }
    answer |= {key: getattr(kept, key) for key in KEYS}
    answer["other_comm_share_ratio"] = kept.details["other_comm_share_ratio"]
    culprits = kept.details["culprits"]
    answer |= {"cause": kept.cause, "culprit": next(iter(culprits), None), "culprits": culprits}
    return answer


def _rows(kept: RecordedTrace) -> list[tuple[str, str, str]]:
    recorded = kept.details["recorded_step_s"]
    return [
        ("workers", f"{kept.n_workers}", ""),
        ("steps", f"{kept.n_steps}", ""),
        ("step", f"{kept.step_s:,.3f} s", f"recorded {recorded:,.3f} s, gaps included"),
        ("slowdown", f"{kept.slowdown_ratio:.3f}", "step time over that without stragglers"),
        ("M_W", _ratio(kept.m_w), "of the slowdown comes from the worst 3 % of workers"),
        ("M_S", _ratio(kept.m_s), "of the slowdown comes from the last pipeline stage"),
        ("all-reduce share", f"{kept.allreduce_share_ratio:.1%}", "of the step, not hidden"),
        ("waiting", f"{kept.wait_share_ratio:.1%}", "for peers"),
        ("transferring", f"{kept.transfer_share_ratio:.1%}", "with all present"),
        (
            "other communication",
            f"{kept.details['other_comm_share_ratio']:.1%}",
            "send and receive, all-to-all, tensor parallel",
        ),
        ("cause", kept.cause, ""),
        ("culprit", ", ".join(kept.details["culprits"]) or "none", ""),
    ]


def _ratio(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"
