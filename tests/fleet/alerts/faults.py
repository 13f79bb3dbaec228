"""Faults as detection reports them, and whether an alert is about one."""

from fleet.alerts.relations import AT_ITS_KEY, SAME_CULPRIT, View, related, subject_of
from fleet.models import Alert
from telemetry.detect.findings import Finding
from tests.helpers import NOON

# Each fault as the rules that may find it: a symptom without a cause, the cause, both.
FAULTS: dict[str, tuple[Finding, ...]] = {
    name: tuple(
        Finding(rule, cause, severity, "llama", node, device, onset_s=NOON.timestamp(), score=1.2)  # type: ignore[arg-type]
        for rule, cause, severity, node, device in seen
    )
    for name, seen in {
        "core": (
            ("allreduce_share", "unknown", "page", None, None),
            ("allreduce_share", "slow_core", "page", "limping", 17),
            ("core_slow", "slow_core", "warn", "limping", 17),
        ),
        "link": (
            ("allreduce_share", "efa_latency", "page", "steady", 2),
            ("efa_degraded", "efa_latency", "warn", "steady", 2),
            ("efa_degraded", "efa_loss", "warn", "steady", 3),
        ),
        "silence": (("node_silent", "node_silent", "page", "silent", None),),
        "stage": (
            ("step_slow", "unknown", "page", None, None),
            ("step_slow", "stage_imbalance", "page", None, None),
        ),
    }.items()
}
EVERYTHING = {(f.rule, subject_of(f)) for seen in FAULTS.values() for f in seen}


def is_of(alert: Alert, finding: Finding) -> bool:
    """Whether an alert is about a finding: by its rule and subject, or by the culprit."""
    return related(AT_ITS_KEY + SAME_CULPRIT, View.of(finding), View.of_alert(alert))
