"""What pages and commands say of imported runs: curves of a log, its gaps, verdict of a trace."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.formatting import count, counted, duration, percent, seconds
from fleet.models import ReadLog, RecordedTrace, Run
from telemetry.blocks import FloatArray

NOT_RECORDED = "not recorded"
COLUMNS = ("step_s", "tokens_per_s", "seq_per_s", "loss", "grad_norm", "learning_rate")
BY = "import_log"
TOO_OLD, AHEAD = "too old", "ahead"
HOW = {
    "told": "",
    "batch": "step times are calculated from the batch and the logged rate",
    "bar": "step times are calculated from the clock that the log or its progress bar prints",
    "clock": "step times are calculated from the times of the lines, pauses included",
}
CLOCKS = {
    "told": "the logged step time",
    "batch": "the batch over the logged rate",
    "bar": "the progress bar",
    "clock": "the line times",
}
RATE_DOUBTS = {
    "mean": "the logged rate is a running average with earlier, slower steps in it: it is no rate "
    "of now and gives no tokens; --global-batch gives both",
    "disputed": "several engines log different rates for the same steps: none counts; "
    "--global-batch gives one",
}
FIGURES = {"loss": "loss", "grad_norm": "gradient norm"}
PLACED = {
    "log": "from the log",
    "start": "counted from --started-at",
    "file": "counted back from the file's last change, because the log has no times",
}
MOVED = {
    TOO_OLD: "older than the retention of steps: shifted so that the run ends at the import",
    AHEAD: "in the future: shifted so that the run ends at the import",
}
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
    took_s = (run.finished_at or run.started_at) - run.started_at
    failed = ""
    if run.end_reason:
        failed = format_html('It <b class="bad-text">failed: {}</b>. ', run.end_reason)
    if not log.n_steps:
        return format_html("<b>{}</b> was imported from a log without steps. {}", run.name, failed)
    pace = f" at {seconds(step_s)} each" if step_s is not None else ""
    return format_html(
        "<b>{}</b> trained to <b>step {}</b>{} in {}. {}It was imported from a {}, which does not "
        "separate compute from all-reduce.",
        run.name,
        count(run.last_step),
        pace,
        duration(took_s),
        failed,
        "table" if log.family == ReadLog.TABLE else "log",
    )


def times_text(log: ReadLog) -> str:
    """Return the source of the run's times."""
    return MOVED.get(log.details["why_moved"]) or PLACED[log.details["placed_by"]]


def log_caveats(log: ReadLog) -> list[str]:
    details, caveats = log.details, list(log.details.get("notes", ()))
    if (end := details.get("end", "ended")) != "ended":
        caveats.append(f"the job {end}")
    if n := log.n_damaged:
        caveats.append(f"{counted(n, 'line')} truncated or garbled, skipped")
    if likely := details.get("likely"):
        caveats.append(
            f"no step was read, although line {likely[0]['number']} looks like training "
            f"({likely[0]['text']}); import_run takes a table of steps"
        )
    if log.family == ReadLog.PROGRESS:
        caveats.append("no line of training is known: the steps are those of the longest bar")
    if n := details["n_guessed"]:
        caveats.append(
            f"the log has no step numbers: {counted(n, 'line')} counted instead, "
            "--log-every steps each"
        )
    if n := details["n_again"]:
        caveats.append(
            f"{counted(n, 'step')} trained again after a restart, used with the later figures"
        )
    if n := details["n_untimed"]:
        fix = "; import_run takes a table with ended_at, or --step-s" if n == log.n_steps else ""
        fix = "; --global-batch makes it known" if details.get("is_rate_only") else fix
        caveats.append(
            f"{counted(n, 'step')} without a duration, shown in the loss chart only{fix}"
        )
    if clocks := details.get("clocks"):
        (other, other_s), (used, used_s) = clocks
        caveats.append(
            f"a step takes {seconds(other_s)} by {CLOCKS[other]} and {seconds(used_s)} by "
            f"{CLOCKS[used]}, which counts"
        )
    if n := details["n_left_out"]:
        caveats.append(
            f"{counted(n, 'compile or error', 'compiles or errors')} above the limit, left out"
        )
    caveats += [_not_finite_text(figure) for figure in details.get("not_finite", ())]
    if doubt := RATE_DOUBTS.get(details.get("rate_doubt", "")):
        caveats.append(doubt)
    if how := HOW.get(details["how"]):
        caveats.append(how)
    return caveats


def _not_finite_text(figure: Mapping[str, Any]) -> str:
    """Say since when a figure is not finite, or how often it was."""
    name, value, since = FIGURES[figure["name"]], figure["value"], count(figure["since"])
    if not figure["is_last"]:
        n = counted(figure["n_steps"], "logged step")
        return f"the {name} was {value} at {n}, the first is step {since}"
    if figure["last_finite"] is None:
        return f"the {name} is {value} since step {since}, the first that logs it"
    before = f"{figure['last_finite']:.4g} at step {count(figure['finite_step'])}"
    return f"the {name} is {value} since step {since}; the last finite one was {before}"


def coverage_text(log: ReadLog) -> str:
    """Return how much of the log was parsed."""
    n = sum(log.details["understood"].values())
    return (
        f"{counted(n, 'entry', 'entries')} of {counted(log.n_lines, 'line')} parsed, "
        f"{count(log.n_other)} of other kinds ignored, {count(log.n_damaged)} incomplete"
    )


def verdict_text(trace: RecordedTrace) -> str:
    step, ideal = seconds(trace.step_s), seconds(trace.details["ideal_step_s"])
    if trace.slowdown_ratio < 1.005:
        slowdown = f"A step takes {step}, the ideal time."
    else:
        slowdown = f"A step takes {step}, {trace.slowdown_ratio:.2f} times the ideal {ideal}."
    details, share_ratio = trace.details, trace.details["share_ratio"]
    share = percent(min(1.0, max(0.0, share_ratio or 0.0)), 0)
    first, *others = details["culprits"] or [""]
    texts = {
        "one_worker": f"One worker is the cause: {first} explains {share} of the slowdown.",
        "several_workers": (
            f"Several workers are the cause: {', '.join([first, *others])} explain {share} of the "
            "slowdown together."
        ),
        "stage_imbalance": (
            f"Pipeline stage {details['stage']} has more work than the others, on every replica: "
            f"uneven stages explain {share} of the slowdown. No single machine is the cause."
        ),
        "sequence_imbalance": (
            "Some micro-batches take much longer than others, forward and backward, on every "
            f"worker in turn: uneven sequence lengths explain {share} of the slowdown. No single "
            "machine is the cause."
        ),
        "communication": (
            f"Slow transfers explain {share} of the slowdown. All participants of a transfer see "
            "the same delay, so no machine is named."
        ),
        "too_short": (
            f"{counted(trace.n_steps, 'step')} cannot show a cause. Record at least three steps "
            "of every worker."
        ),
        "none": (
            "No single cause explains it: not a few workers, the stages, the sequence lengths or "
            "communication. Pauses at random times on all workers look like this."
        ),
    }
    if share_ratio is None and trace.cause == "communication":
        other_ratio = details.get("other_comm_share_ratio", 0.0)
        return (
            f"{slowdown} {percent(trace.transfer_share_ratio, 0)} of the step is gradient "
            f"transfer with all workers present, and {percent(other_ratio, 0)} is other "
            "communication: the network or the layout is the limit, no single machine."
        )
    if share_ratio is None and trace.cause == "none":
        return f"{slowdown} No significant slowdown.{_exposed_text(trace)}"
    more = _exposed_text(trace) if trace.cause == "too_short" else ""
    return f"{slowdown} {texts[trace.cause]}{more}"


def _exposed_text(trace: RecordedTrace) -> str:
    """Return what a verdict without a cause leaves out: communication that work does not hide."""
    other_ratio = trace.details.get("other_comm_share_ratio", 0.0)
    if trace.allreduce_share_ratio + other_ratio < EXPOSED_RATIO:
        return ""
    return (
        f" No work hides {percent(trace.allreduce_share_ratio, 0)} of the step in gradient "
        f"exchange and {percent(other_ratio, 0)} in other communication."
    )


def verdict_caveats(trace: RecordedTrace) -> list[str]:
    details = trace.details
    caveats = []
    if n := details["n_left_out"]:
        caveats.append(f"{counted(n, 'step')} incomplete, left out")
    if n := details["n_missing"]:
        caveats.append(f"{counted(n, 'operation')} missing; durations of their peers are used")
    if n := details.get("n_ranks_missing"):
        caveats.append(f"{counted(n, 'rank')} of the job not in the trace, which may be the cause")
    if n := details.get("n_dropped"):
        caveats.append(f"{counted(n, 'operation')} lost by the recorder: steps may be wrong")
    if not details.get("shows_overlap", True):
        caveats.append(
            "the recording does not show what runs during communication, so all of it counts as "
            "exposed: its shares are upper limits"
        )
    # The simulated step has no gaps, so it should not take longer than the recorded one.
    if trace.step_s > FITS_RATIO * details["recorded_step_s"]:
        caveats.append(
            "the simulated step takes longer than the recorded one: the operations do not wait "
            "for each other as in a pipeline, so the verdict is uncertain"
        )
    return caveats
