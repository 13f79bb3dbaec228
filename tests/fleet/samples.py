"""Samples of nodes for tests, as an agent packs them."""

from datetime import datetime, timedelta
from typing import Any

from fleet.ingest.samples import record_answer
from fleet.models import Node, SampleRequest
from telemetry.agent.sampling import BYTES, CORES, SampleTable, encode_sample


def answer_of(
    number: int, *, at_s: float, n: int = 300, monitor_ms: int = 100, n_cores: int = 32
) -> dict[str, Any]:
    """Pack a sample: core 0 a quarter busy, the others three; 1 MB sent in each reading.

    The tenth reading is missing.
    """
    monitor, driver = SampleTable("monitor", CORES), SampleTable("driver", CORES)
    sent, received = SampleTable("efa_tx", BYTES), SampleTable("efa_rx", BYTES)
    driver.note = "the Neuron driver shows no core times"
    for ms in range(monitor_ms, 100 * n + 1, monitor_ms):
        if ms != 1000 or monitor_ms > 100:
            monitor.add(ms, {str(core): 150 if core else 50 for core in range(n_cores)})
    for ms in range(100, 100 * n + 1, 100):
        if ms != 1000:
            sent.add(ms, {"0": 1_000_000, "1": 0})
            received.add(ms, {"0": 500_000, "1": 0})
    return encode_sample(number, at_s, 0.1, n / 10, [monitor, driver, sent, received])


def requested(node: Node, *, now: datetime, ago_s: float = 0.0, by: str = "olga") -> SampleRequest:
    at = now - timedelta(seconds=ago_s)
    return SampleRequest.objects.create(node=node, requested_by=by, requested_at=at)


def taken(node: Node, *, now: datetime, ago_s: float = 60.0, **how: Any) -> SampleRequest:
    """Store a sample of a node that was requested some time ago."""
    row = requested(node, now=now, ago_s=ago_s)
    answer = answer_of(row.pk, at_s=row.requested_at.timestamp(), **how)
    assert record_answer(node.name, answer).refused is None
    return SampleRequest.objects.get(pk=row.pk)
