"""All rules over the vitals of one run: what is broken now."""

from collections.abc import Collection

import numpy as np

from telemetry.detect.ecc import uncorrected
from telemetry.detect.finding import UNKNOWN, Finding
from telemetry.detect.localise import localise
from telemetry.detect.rules import RULES
from telemetry.detect.share import episode
from telemetry.detect.vitals import Vitals, reported

SHARE = "allreduce_share"


def find(vitals: Vitals, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """Return every rule that the run breaks now.

    ``open_rules`` names the rules whose alert on this run is open: it decides only where the
    window itself holds neither a breaking nor a mending.
    """
    found = list(share_findings(vitals, is_open=SHARE in open_rules))
    if vitals.counts is not None:
        found += uncorrected(vitals.counts, run=vitals.run)
    return found


def share_findings(vitals: Vitals, *, is_open: bool) -> list[Finding]:
    """Apply the headline rule."""
    steps = reported(vitals.steps)
    if not len(steps):
        return []
    share = steps.allreduce_share_ratio
    since = episode(
        share,
        limit_ratio=vitals.limit_ratio,
        resolve_ratio=vitals.resolve_ratio,
        is_open=is_open,
    )
    if since is None:
        return []
    suspect = localise(vitals, steps, since.start)
    recent = steps[since.start :].last(10)
    wait = float(np.mean(recent.wait_ratio))
    transfer = float(np.mean(recent.transfer_ratio))
    return [
        Finding(
            rule=SHARE,
            cause=suspect.cause if suspect.cause else UNKNOWN,
            severity=RULES[SHARE].severity,
            run=vitals.run,
            node=suspect.node,
            device=suspect.device,
            onset_s=float(steps.ended_at_s[since.start] - steps.step_s[since.start]),
            score=(wait + transfer) / vitals.limit_ratio,
            victims=tuple(node for node in vitals.nodes if node != suspect.node),
            evidence={
                "share_ratio": wait + transfer,
                "wait_ratio": wait,
                "transfer_ratio": transfer,
                "limit_ratio": vitals.limit_ratio,
                "kind": "waiting" if wait > transfer else "transferring",
                "step": int(steps.step[-1]),
                "step_s": float(np.mean(recent.step_s)),
            },
        )
    ]
