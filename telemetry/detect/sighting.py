"""A sick part of a machine as its own telemetry shows it: what stands out, since when."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import Span
from telemetry.detect.look import Look
from telemetry.detect.vitals import Standing

# The rule that a cause breaks at a node.
RULE_OF_NODE: Mapping[str, str] = {
    "slow_core": "core_slow",
    "throttle": "core_slow",
    "hbm_slow": "hbm_slow",
    "efa_latency": "efa_degraded",
    "efa_loss": "efa_degraded",
    "efa_down": "efa_degraded",
}
LINK_CAUSES = ("efa_latency", "efa_loss", "efa_down")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A look that stands out, and when what it shows began."""

    look: Look
    onset_s: float


def remembered(alert: Standing) -> Look:
    """Return the look that an open alert was made of."""
    figure = alert.evidence.get("culprit") or {}
    return Look(
        cause=alert.cause,
        strength=1.0,
        metric=str(figure.get("metric") or ""),
        value=_float(figure.get("value")),
        peers_median=_float(figure.get("peers_median")),
        n_peers=int(figure.get("n_peers") or 0),
        unit=str(figure.get("unit") or ""),
        node=alert.node,
        device=alert.device,
    )


def since(alert: Standing, span: Span) -> float:
    """Return since when an open alert has been so: as it says, or since the window began."""
    onset_s = _float(alert.evidence.get("onset_s"))
    return onset_s if np.isfinite(onset_s) else float(span.ticks[0])


def _float(value: object) -> float:
    """Return a number of some evidence; NaN where there is none."""
    return float(value) if isinstance(value, int | float) else np.nan
