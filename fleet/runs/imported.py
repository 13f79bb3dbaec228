"""What pages and commands say of imported runs: curves of a log, its gaps, verdict of a trace."""

from collections.abc import Mapping
from io import BytesIO

import numpy as np
from django.utils.safestring import SafeString

from fleet.formatting import percent, render_line, render_lines, render_text
from fleet.models import ReadLog, RecordedTrace, Run
from telemetry.blocks import FloatArray

NOT_RECORDED = "not recorded"
COLUMNS = ("step_s", "tokens_per_s", "seq_per_s", "loss", "grad_norm", "learning_rate")
BY = "import_log"
# Why the times of a log were moved.
TOO_OLD, AHEAD = "too old", "ahead"
KINDS = {
    "progress": "Bare progress bars",
    "compile cache": "Compile cache",
    "hardware errors": "Hardware errors",
    "errors": "Errors",
}
FITS_RATIO = 1.05
# A verdict without a cause mentions communication from this share of the step on.
EXPOSED_RATIO = 0.05
SHORT = {
    "one_worker": "one worker",
    "several_workers": "several workers",
    "stage_imbalance": "stages",
    "sequence_imbalance": "sequences",
    "communication": "transfers",
    "too_short": "too few steps",
    "none": "none",
}
CAUSES = {
    "one_worker": ("One worker", "slower than the others that do the same work"),
    "several_workers": (
        "Several workers",
        "each slower than the others that do the same work, in most steps",
    ),
    "stage_imbalance": (
        "Uneven stages",
        "one pipeline stage has more work than the others, on every replica",
    ),
    "sequence_imbalance": (
        "Uneven sequences",
        "some micro-batches take long forward and backward, on every worker in turn",
    ),
    "communication": ("Communication", "some transfers take longer than usual"),
}

Curves = Mapping[str, FloatArray]


def unpack_curves(data: bytes) -> dict[str, FloatArray]:
    """Unpack curves; empty arrays from no bytes."""
    names = ("step", "ended_at_s", *COLUMNS)
    if not data:
        return {name: np.zeros(0) for name in names}
    with np.load(BytesIO(data), allow_pickle=False) as kept:
        return {name: kept[name] for name in names}


def headline(run: Run, log: ReadLog, step_s: float | None) -> SafeString:
    return render_line(
        "runs/_imported.txt#headline",
        run=run,
        log=log,
        step_s=step_s,
        took=(run.finished_at or run.started_at) - run.started_at,
        is_table=log.family == ReadLog.TABLE,
    )


def times_text(log: ReadLog) -> str:
    """Return the source of the run's times."""
    return render_text("runs/_imported.txt#times", details=log.details)


def log_caveats(log: ReadLog) -> list[str]:
    is_progress = log.family == ReadLog.PROGRESS
    context = {"log": log, "details": log.details, "is_progress": is_progress}
    caveats = list(log.details.get("notes", ()))
    caveats += render_lines("runs/_imported.txt#log-read", **context)
    if likely := log.details.get("likely"):
        # The line of the log stays as it is.
        caveats.append(
            f"no step was read, although line {likely[0]['number']} looks like training "
            f"({likely[0]['text']}); import_run takes a table of steps"
        )
    return caveats + render_lines("runs/_imported.txt#log-caveats", **context)


def coverage_text(log: ReadLog) -> str:
    """Return how much of the log was parsed."""
    n = sum(log.details["understood"].values())
    return render_text("runs/_imported.txt#coverage", log=log, n=n)


def verdict_text(trace: RecordedTrace) -> str:
    details, share_ratio = trace.details, trace.details["share_ratio"]
    other_ratio = details.get("other_comm_share_ratio", 0.0)
    return render_text(
        "runs/_imported.txt#verdict",
        trace=trace,
        details=details,
        culprits=details["culprits"] or [""],
        share=percent(min(1.0, max(0.0, share_ratio or 0.0)), 0),
        is_ideal=trace.slowdown_ratio < 1.005,
        is_only_exposed=share_ratio is None,
        other_ratio=other_ratio,
        is_exposed=trace.allreduce_share_ratio + other_ratio >= EXPOSED_RATIO,
    )


def verdict_caveats(trace: RecordedTrace) -> list[str]:
    # The simulated step has no gaps, so it should not take longer than the recorded one.
    is_slower = trace.step_s > FITS_RATIO * trace.details["recorded_step_s"]
    return render_lines(
        "runs/_imported.txt#trace-caveats", details=trace.details, is_slower=is_slower
    )
