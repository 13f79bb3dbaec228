"""A node's stored last report, with the fields that neuron-monitor's exporter shows."""

from collections.abc import Mapping
from operator import attrgetter

import msgspec

from telemetry.ingest import schemas
from telemetry.ingest.schemas import Name

_ERRORS = attrgetter(*schemas.ErrorSummary.__struct_fields__)
_ENDINGS = attrgetter(*schemas.ExecutionSummary.__struct_fields__)
_NO_ERRORS, _NO_ENDINGS = schemas.ErrorSummary(), schemas.ExecutionSummary()


class LastVcpuUsage(schemas.VcpuUsage, kw_only=True):
    """Usage of the host's vCPUs; ``usage_data`` has an entry per vCPU, which counts them."""

    usage_data: dict[str, msgspec.Raw] | None = None


class LastSystemData(schemas.SystemData):
    """The groups of the host."""

    vcpu_usage: LastVcpuUsage | None = None


class LastInstanceInfo(schemas.InstanceInfo):
    instance_region: Name | None = None
    subnet_id: Name | None = None


class LastReport(msgspec.Struct):
    neuron_runtime_data: list[schemas.Runtime] | None = None
    system_data: LastSystemData | None = None
    instance_info: LastInstanceInfo | None = None
    neuron_hardware_info: schemas.HardwareInfo | None = None


class _Line(LastReport):
    """A report, plain or wrapped by the agent."""

    report: LastReport | None = None


_LINE = msgspec.json.Decoder(_Line)


def read_last_report(line: bytes) -> LastReport:
    """Decode a report that was accepted before."""
    sent = _LINE.decode(line)
    return sent.report or sent


def tag_of(process: schemas.Runtime) -> str:
    """Return the exporter's name of a process: its tag, else its pid."""
    return process.neuron_runtime_tag or str(process.pid or "")


def executed(processes: list[schemas.Runtime] | None) -> Mapping[str, list[float]]:
    """Return what each process executed in the period, by its tag.

    Each list has the errors by kind, then the executions by ending, in the schema's order.
    Processes whose statistics failed are left out.
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
