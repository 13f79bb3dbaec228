"""What is said of a log that was read: how the run went, and what the log leaves open."""

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import ReadLog, Run
from fleet.templatetags.units import count, duration, seconds
from fleet.words.wording import counted

HOW = {
    "told": "",
    "batch": "step times follow from the batch and the sequences per second",
    "bar": "step times follow from the progress bar's clock, to the second",
    "clock": "step times follow from the times of the lines, pauses included",
}
PLACED = {
    "log": "by the log's own times",
    "start": "counted from --started-at",
    "file": "counted back from when the file was written last; the log has none",
}
MOVED = {
    "too old": "older than steps are kept: set so that the run ends at the import",
    "ahead": "ahead of the clock here: set so that the run ends at the import",
}
KINDS = {
    "progress": "Bare progress bars",
    "compile cache": "Compile cache",
    "hardware errors": "Hardware errors",
}


def headline(run: Run, log: ReadLog, step_s: float | None) -> SafeString:
    """Say what was read, how far the run came, and what a log cannot tell."""
    took_s = (run.finished_at or run.started_at) - run.started_at
    if not log.n_steps:
        text = "<b>{}</b> was read from a log that tells of no step."
        return format_html(text, run.name)
    pace = f" at {seconds(step_s)} each" if step_s is not None else ""
    return format_html(
        "<b>{}</b> trained to <b>step {}</b>{} in {}. It was read from a log, which does not "
        "tell computing from all-reduce.",
        run.name,
        count(run.last_step),
        pace,
        duration(took_s),
    )


def times_in_words(log: ReadLog) -> str:
    """Say where the run's times come from."""
    return MOVED.get(log.details["why_moved"]) or PLACED[log.details["placed_by"]]


def doubts(log: ReadLog) -> list[str]:
    """Say what makes the figures less certain, or leaves some of them out."""
    details, told = log.details, []
    if n := log.n_damaged:
        told.append(f"{counted(n, 'line')} cut off or garbled, skipped")
    if n := details["n_guessed"]:
        told.append(
            f"the log does not number its steps: {counted(n, 'line')} counted instead, "
            "--log-every steps each"
        )
    if n := details["n_again"]:
        told.append(f"{counted(n, 'step')} trained again after a restart; the later one counts")
    if n := details["n_untimed"]:
        told.append(f"{counted(n, 'step')} without a time, in the loss only")
    if n := details["n_left_out"]:
        told.append(
            f"{counted(n, 'compile or error', 'compiles or errors')} beyond what is kept, left out"
        )
    if how := HOW.get(details["how"]):
        told.append(how)
    return told


def read_in_words(log: ReadLog) -> str:
    """Say how much of the log was understood."""
    n = sum(log.details["understood"].values())
    return (
        f"{counted(n, 'entry', 'entries')} of {counted(log.n_lines, 'line')} understood, "
        f"{count(log.n_other)} of other kinds left alone, {count(log.n_damaged)} not whole"
    )
