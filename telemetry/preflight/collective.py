"""The collective test: sizes up to 1 GB, and how far what was measured lies from the expected."""

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.preflight.measured import Collective

# 1 KiB, 4 KiB and so on up to 1 GiB.
SIZES_BYTES: FloatArray = 2.0 ** np.arange(10, 31, 2)
# What the expected curve is worth: it fits published runs within 15 %, and for Trainium2 no run
# of several nodes is public. Half as long again is no matter of the curve any more.
SLOWER_BY = 1.5
# Below this the start counts, which releases of the runtime have changed twentyfold.
JUDGED_FROM_BYTES = 2.0**20


def slowdown(measured: Collective) -> float:
    """Return how many times as long as expected a collective takes; NaN if that is not known.

    Notes
    -----
    The median over the sizes from 1 MiB on: there bytes count, and bytes are what the links
    carry. Sources: aws-neuron-sdk, nccom-test.rst and neuron-runtime/about/collectives.rst.
    """
    judged = measured.size_bytes >= JUDGED_FROM_BYTES
    ratio = measured.time_s[judged] / measured.expected_s[judged]
    known = ratio[np.isfinite(ratio)]
    return float(np.median(known)) if known.size else float("nan")


def is_slow(measured: Collective) -> bool:
    """Whether a collective takes much longer than this type of instance should need."""
    return slowdown(measured) > SLOWER_BY
