"""The demo's preflight: sixteen candidates for the twelve places of the pretraining run."""

from datetime import timedelta

from fleet.alerting.answers import acknowledge
from fleet.models import Preflight, Run
from fleet.preflight.alerting import watch_starts
from fleet.preflight.asking import ask
from fleet.preflight.requiring import require
from fleet.preflight.running import run_through

RUN, SPARES = "pretrain-gpt", ("spare-01", "spare-02", "spare-03", "spare-04")
# A bad EFA device, an accelerator short, memory that fails, and a spare that two others cannot
# work with.
FOUND = (
    "efa_latency:spare-02/11=4",
    "chip_missing:spare-03",
    "ecc_uncorrected:spare-04",
    f"pair_slow:{RUN}-05+spare-01=2.5",
    f"pair_slow:{RUN}-09+spare-01=2.5",
)
BEFORE_START = timedelta(minutes=40)
# This one did not wait for its preflight, and somebody answers for it.
IN_A_HURRY = "longctx"
WHY, TAKEN_AFTER = (
    "taken over as they stood from the last job, which ran clean",
    timedelta(minutes=9),
)


def ensure_preflight() -> Preflight | None:
    """Put a preflight into the past of the largest run; returns it if this call did."""
    run = Run.objects.simulated().filter(name=RUN).first()
    if run is None or Preflight.objects.filter(run=run).exists():
        return None
    nodes = list(run.nodes.order_by("rank").values_list("name", flat=True))
    at = run.started_at - BEFORE_START
    preflight = ask(
        [*nodes, *SPARES],
        take=len(nodes),
        run=run,
        faults=FOUND,
        by="the demo",
        now=at,
        is_rehearsal=True,
    )
    run_through(preflight, now=at + timedelta(minutes=9))
    require(run, requires=True)
    for hurried in Run.objects.simulated().filter(name=IN_A_HURRY):
        require(hurried, requires=True)
        at = hurried.started_at + TAKEN_AFTER
        for alert in watch_starts(now=at):
            acknowledge(alert, by="the demo", comment=WHY, now=at)
    return preflight
