"""The last report of a node, read again for all that its own exporter would show of it."""

from collections.abc import Mapping
from operator import attrgetter

import msgspec

from telemetry.ingest import schemas
from telemetry.ingest.schemas import Name

_ERRORS = attrgetter(*schemas.ErrorSummary.__struct_fields__)
_ENDINGS = attrgetter(*schemas.ExecutionSummary.__struct_fields__)
_NO_ERRORS, _NO_ENDINGS = schemas.ErrorSummary(), schemas.ExecutionSummary()


class LastVcpuUsage(schemas.VcpuUsage, kw_only=True):
    """The host's vCPUs; how many there are is how many are told of."""

    usage_data: dict[str, msgspec.Raw] | None = None


class LastSystemData(schemas.SystemData):
    """The groups of the machine."""

    vcpu_usage: LastVcpuUsage | None = None


class LastInstanceInfo(schemas.InstanceInfo):
    """Which machine this is, and where."""

    instance_region: Name | None = None
    subnet_id: Name | None = None


class LastReport(msgspec.Struct):
    """One report."""

    neuron_runtime_data: list[schemas.Runtime] | None = None
    system_data: LastSystemData | None = None
    instance_info: LastInstanceInfo | None = None
    neuron_hardware_info: schemas.HardwareInfo | None = None


class _Line(LastReport):
    """A report as it is, or in its sender's envelope."""

    report: LastReport | None = None


_LINE = msgspec.json.Decoder(_Line)


def read_last_report(line: bytes) -> LastReport:
    """Read a report that was taken before."""
    sent = _LINE.decode(line)
    return sent.report or sent


def tag_of(process: schemas.Runtime) -> str:
    """Return how the exporter names a process."""
    return process.neuron_runtime_tag or str(process.pid or "")


def executed(processes: list[schemas.Runtime] | None) -> Mapping[str, list[float]]:
    """Return what each process executed in the period, by its tag.

    The list counts errors by kind and then executions by how they ended, in the order of the
    report. A process whose statistics failed is left out.
    """
    counts: dict[str, list[float]] = {}
    for process in processes or ():
        stats = process.report and process.report.execution_stats
        if not stats or stats.error:
            continue
        errors = _ERRORS(stats.error_summary or _NO_ERRORS)
        now = [n or 0.0 for n in (*errors, *_ENDINGS(stats.execution_summary or _NO_ENDINGS))]
        tag = tag_of(process)
        before = counts.get(tag)
        counts[tag] = now if before is None else [*map(sum, zip(before, now, strict=True))]
    return counts
