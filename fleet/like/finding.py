"""Which runs are alike, and in which settings they differ: precision, flags, compiler, SDK."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import QuerySet

from fleet.models import Run
from telemetry.compiles import flags_of

# What must agree, or a difference in pace is of something else.
ALIKE = ("model", "instance_type", "n_nodes", "seq_len", "global_batch")
MOST_LIKE = 6


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that another run has otherwise."""

    what: str
    mine: str
    theirs: str


def like_runs(run: Run) -> QuerySet[Run]:
    """Return the runs that trained the same model and batch on as many of the same nodes."""
    told = {name: getattr(run, name) for name in ALIKE}
    if not all(told.values()):
        return Run.objects.none()
    trained = Run.objects.filter(last_step__gt=0, **told).exclude(pk=run.pk)
    return trained.defer("plan", "clock").order_by("-started_at", "name")


def differing(run: Run) -> Sequence[tuple[Run, Sequence[Difference]]]:
    """Return the newest like runs that have a setting otherwise, with what that is."""
    pairs = ((other, differences_of(run, other)) for other in like_runs(run)[: 4 * MOST_LIKE])
    return [(other, found) for other, found in pairs if found][:MOST_LIKE]


def differences_of(run: Run, other: Run) -> Sequence[Difference]:
    """Return the settings that differ; what either does not tell is no difference."""
    found = []
    if run.precision and other.precision and run.precision != other.precision:
        found.append(Difference("precision", run.precision, other.precision))
    mine, theirs = flags_of(run.compiler_flags), flags_of(other.compiler_flags)
    if mine and theirs and set(mine) != set(theirs):
        only = [" ".join(flag for flag in one if flag not in two) or "none"
                for one, two in ((mine, theirs), (theirs, mine))]  # fmt: skip
        found.append(Difference("flags", *only))
    for what, name in (("neuronx-cc", "compiler_version"), ("Neuron SDK", "sdk_version")):
        told = getattr(run, name), getattr(other, name)
        if all(told) and told[0] != told[1]:
            found.append(Difference(what, *told))
    return found
