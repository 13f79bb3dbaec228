"""Which core or accelerator of a late node stands out from its peers."""

from telemetry.detect.case import Case
from telemetry.detect.look import Look

PART_METRICS = ("core_utilization_ratio", "hbm_bandwidth_bytes_per_s")


def part_looks(case: Case, node: str) -> list[Look]:
    """Look for a slow core, slow memory and a throttled accelerator on the late node."""
    return []
