"""What is said of a recorded trace: the verdict in words, and what to do about it."""

from fleet.models import RecordedTrace
from fleet.templatetags.units import percent, seconds
from fleet.words.wording import counted

# A replay leaves gaps out, so that it cannot take longer than what was recorded.
FITS_RATIO = 1.05

# One word, for where there is room for one.
SHORT = {
    "one_worker": "one worker",
    "stage_imbalance": "stages",
    "sequence_imbalance": "sequences",
    "communication": "transfers",
    "none": "none",
}
CAUSES = {
    "one_worker": (
        "A worker or a few",
        "slower than the others that do the same work, most of the time",
    ),
    "stage_imbalance": (
        "Uneven stages",
        "a pipeline stage that has more to do than others, on every replica",
    ),
    "sequence_imbalance": (
        "Uneven sequences",
        "micro-batches that take long forward and backward, on every worker in turn",
    ),
    "communication": (
        "Communication",
        "transfers that take longer than the same transfers usually do",
    ),
}


def verdict_in_words(trace: RecordedTrace) -> str:
    """Say in a sentence or two what slowed a recorded run down, and whom to look at."""
    return f"{_how_slow(trace)} {_why(trace)}"


def doubts(trace: RecordedTrace) -> list[str]:
    """Say what makes a verdict less certain: what was not recorded, or does not add up."""
    details = trace.details
    told = []
    if n := details["n_left_out"]:
        told.append(f"{counted(n, 'step')} not recorded whole, left out")
    if n := details["n_missing"]:
        told.append(f"{counted(n, 'operation')} missing, counted as their peers")
    if n := details.get("n_ranks_missing"):
        told.append(
            f"{counted(n, 'rank')} of the job not in the trace; the one to blame may be among them"
        )
    if trace.step_s > FITS_RATIO * details["recorded_step_s"]:
        told.append(
            "played again, the operations take longer than they did: they do not wait for each "
            "other as a pipeline's do, and the verdict is a guess"
        )
    return told


def _how_slow(trace: RecordedTrace) -> str:
    ideal = seconds(trace.details["ideal_step_s"])
    if trace.slowdown_ratio < 1.005:
        return f"A step takes {seconds(trace.step_s)}, as long as it should."
    return (
        f"A step takes {seconds(trace.step_s)}; had every operation taken as long as its peers, "
        f"it would take {ideal}: {trace.slowdown_ratio:.2f} times as long as it should."
    )


def _why(trace: RecordedTrace) -> str:
    share = percent(min(1.0, max(0.0, trace.details["share_ratio"] or 0.0)), 0)
    match trace.cause:
        case RecordedTrace.Cause.ONE_WORKER:
            return _blamed(trace.details["culprits"], share)
        case RecordedTrace.Cause.STAGE_IMBALANCE:
            return (
                f"Pipeline stage {trace.details['stage']} has more work than the others, on every "
                f"replica: uneven stages explain {share} of the slowdown. No machine is to blame."
            )
        case RecordedTrace.Cause.SEQUENCE_IMBALANCE:
            return (
                "Some micro-batches take much longer than others, forward and backward alike, on "
                f"every worker in turn: uneven sequence lengths explain {share} of the slowdown. "
                "No machine is to blame."
            )
        case RecordedTrace.Cause.COMMUNICATION:
            return _moving(trace, share)
    if trace.details["share_ratio"] is None:
        return "Nothing slows it down that is worth a look."
    return (
        "No single cause explains it: neither a few workers, nor the stages, the sequence "
        "lengths or communication. Pauses that come and go everywhere look like this."
    )


def _blamed(culprits: list[str], share: str) -> str:
    if len(culprits) == 1:
        return f"One worker is to blame: {culprits[0]} explains {share} of the slowdown."
    others = ", ".join(culprits[1:])
    return f"A few workers are to blame, first {culprits[0]}, then {others}: {share} together."


def _moving(trace: RecordedTrace, share: str) -> str:
    if trace.details["share_ratio"] is None:
        return (
            f"Yet {percent(trace.transfer_share_ratio, 0)} of the step goes by moving gradients "
            "with all workers present: the network or the layout is the limit, no single machine."
        )
    return (
        f"Transfers that take longer than the same transfers usually do explain {share} of the "
        "slowdown. All who take part in one see it alike, so no machine is named."
    )
