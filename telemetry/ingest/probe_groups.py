"""Probe outputs of a group of nodes, identified by file name, as one measurement.

File names: ``pair__A__B.txt`` (fi_pingpong, nccom-test or nccl-tests between two nodes),
``device__A__3.txt`` (fi_pingpong of one EFA device over loop-back), ``collective__ANYTHING.txt``
(nccom-test or nccl-tests over all nodes), ``node__A.json`` (counts). A file that contains
``no answer`` is a pair or device that did not respond.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.checks.preflight_measurements import REST_COUNTERS, Collective, Measured
from telemetry.ingest.probes import PINGPONG, Failure, Probe, ProbeRow, read_probe

NODE = r"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_))*"
PAIR = re.compile(rf"pair__({NODE})__({NODE})(?:__\w+)?\.\w+")
DEVICE = re.compile(rf"device__({NODE})__(\d{{1,3}})(?:__\w+)?\.\w+")
NODE_FILE = re.compile(rf"node__({NODE})\.json")
COLLECTIVE = re.compile(r"collective(?:__[\w.-]*)?\.\w+")
FILE_NAMES = "pair__A__B.txt, device__A__0.txt, collective.txt and node__A.json"
# Written by the probe script if the peer did not respond.
NO_ANSWER = b"no answer"
# Latency is measured on messages up to this size, bandwidth on the largest.
SMALL_BYTES = 8192.0
Count = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
# Expected seconds of an all-reduce over so many nodes at these sizes, (k,) each.
Curve = Callable[[int, FloatArray], FloatArray]


class GroupError(ValueError):
    """A file is not a valid probe output; the message names the file and the fix."""


class NodeCounts(msgspec.Struct, forbid_unknown_fields=True):
    """Hardware counts of a node; missing fields are unknown."""

    n_devices: Count | None = None
    n_efa: Count | None = None
    rest_s: Count | None = None
    rest: dict[str, Count] = {}
    ecc_uncorrected: Count | None = None
    hardware_errors: Count | None = None


@dataclass(slots=True)
class ProbeFiles:
    """The parsed files: probes by pair and by device, collectives, counts."""

    pairs: dict[tuple[str, str], list[Probe]] = field(default_factory=dict)
    devices: dict[tuple[str, int], list[Probe]] = field(default_factory=dict)
    collectives: list[Probe] = field(default_factory=list)
    counts: dict[str, NodeCounts] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, sorted."""
        ends = {end for pair in self.pairs for end in pair}
        return tuple(sorted(ends | {node for node, _ in self.devices} | set(self.counts)))


def read_group(files: Iterable[tuple[str, bytes]]) -> ProbeFiles:
    """Read the probe outputs of a group, as (name, content) in any order.

    Raises
    ------
    GroupError
        If a name or a content is invalid, or no file names a node.
    """
    read = ProbeFiles()
    for name, data in files:
        _add_file(read, name, data)
    if not read.nodes:
        raise GroupError(f"no file names a node; name files {FILE_NAMES}")
    return read


def measured_group(read: ProbeFiles, *, n_efa: int, curve: Curve) -> Measured:
    """Return the files as one measurement; raises GroupError for an unknown device.

    Parameters
    ----------
    n_efa : int
        EFA devices of this instance type.
    curve : Curve
        Expected seconds of an all-reduce, by number of nodes and sizes.
    """
    measured = Measured.nothing_of(read.nodes, n_efa=n_efa)
    measured = _with_devices(_with_pairs(measured, read), read)
    return replace(
        _with_counts(measured, read.counts),
        collectives=tuple(
            _collective(probe, read.nodes, curve) for probe in read.collectives if probe.rows
        ),
    )


def _add_file(read: ProbeFiles, name: str, data: bytes) -> None:
    if match := NODE_FILE.fullmatch(name):
        read.counts[match[1]] = _counts(name, data)
        return
    pair, device = PAIR.fullmatch(name), DEVICE.fullmatch(name)
    if not (pair or device or COLLECTIVE.fullmatch(name)):
        raise GroupError(f"{name[:80]}: unknown file name; name files {FILE_NAMES}")
    if pair and pair[1] == pair[2]:
        raise GroupError(f"{name[:80]}: names the same node twice; give two nodes")
    probe = read_probe(data)
    if not probe.rows and NO_ANSWER in data:
        probe.failures.append(Failure(NO_ANSWER.decode()))
    if not probe.rows and not probe.failures:
        raise GroupError(f"{name[:80]} holds no table of fi_pingpong, nccom-test or nccl-tests")
    if pair:
        one, other = sorted((pair[1], pair[2]))
        read.pairs.setdefault((one, other), []).append(probe)
    elif device:
        read.devices.setdefault((device[1], int(device[2])), []).append(probe)
    else:
        read.collectives.append(probe)


def _counts(name: str, data: bytes) -> NodeCounts:
    try:
        counts = msgspec.json.decode(data, type=NodeCounts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GroupError(f"{name[:80]}: {error}") from error
    if strange := sorted(set(counts.rest) - set(REST_COUNTERS)):
        raise GroupError(
            f"{name[:80]}: rest.{strange[0][:40]} is none of {', '.join(REST_COUNTERS)}"
        )
    return counts


def _with_pairs(measured: Measured, read: ProbeFiles) -> Measured:
    place = {node: i for i, node in enumerate(measured.nodes)}
    ends = [(place[one], place[other]) for one, other in read.pairs]
    if not ends:
        return measured
    figures = np.array([figures_of(probes) for probes in read.pairs.values()])
    rows, columns = np.array(ends).T
    names = ("p50_s", "p99_s", "bandwidth_bytes_per_s")
    return measured.with_pairs(rows, columns, dict(zip(names, figures.T, strict=True)))


def figures_of(probes: Sequence[Probe]) -> tuple[float, float, float]:
    """Return median and 99th percentile of small messages, and bytes per second of the largest.

    Notes
    -----
    nccom-test can print percentiles. fi_pingpong prints means, so its percentiles are those of
    its rows over all runs of the pair: run it several times. Its first row includes connection
    set-up and is ignored. A probe without rows gives infinite latency and no bandwidth.
    """
    rows = [
        row for probe in probes for row in probe.rows if row.is_measured and not row.is_warm_up
    ]
    if not rows:
        return np.inf, np.inf, 0.0
    least = max(SMALL_BYTES, min(row.size_bytes for row in rows))
    small = [row for row in rows if row.size_bytes <= least]
    largest = max(row.size_bytes for row in rows)
    rates = [_rate(row) for row in rows if row.size_bytes == largest]
    return (
        float(np.median([row.percentiles_s.get(50, row.time_s) for row in small])),
        float(np.percentile([row.percentiles_s.get(99, row.time_s) for row in small], 99)),
        float(np.median(rates)),
    )


def _rate(row: ProbeRow) -> float:
    known = np.isfinite(row.busbw_bytes_per_s) and row.busbw_bytes_per_s > 0
    return row.busbw_bytes_per_s if known else row.size_bytes / row.time_s


def _with_devices(measured: Measured, read: ProbeFiles) -> Measured:
    place = {node: i for i, node in enumerate(measured.nodes)}
    device_s = measured.device_s.copy()
    for (node, device), probes in read.devices.items():
        if device >= device_s.shape[1]:
            n = device_s.shape[1]
            raise GroupError(f"device {device} of {node}: this type has {n}, counted from 0")
        device_s[place[node], device] = figures_of(probes)[0]
    return replace(measured, device_s=device_s)


def _with_counts(measured: Measured, counts: Mapping[str, NodeCounts]) -> Measured:
    by_node = [counts.get(node, NodeCounts()) for node in measured.nodes]
    rest_s = [each.rest_s for each in by_node if each.rest_s is not None]

    def column(name: str) -> FloatArray:
        return np.array([np.nan if (v := getattr(t, name)) is None else v for t in by_node])

    return replace(
        measured,
        n_devices=column("n_devices"),
        n_efa_seen=column("n_efa"),
        ecc_uncorrected=column("ecc_uncorrected"),
        hardware_errors=column("hardware_errors"),
        rest={
            name: np.array([each.rest.get(name, np.nan) for each in by_node])
            for name in REST_COUNTERS
            if any(name in each.rest for each in by_node)
        },
        rest_s=min(rest_s, default=float("nan")),
    )


def _collective(probe: Probe, nodes: tuple[str, ...], curve: Curve) -> Collective:
    """Return one collective's times by size, out-of-place rows only."""
    if probe.tool == PINGPONG:
        raise GroupError(
            "collective: give the output of nccom-test or nccl-tests, not fi_pingpong"
        )
    rows = {row.size_bytes: row for row in reversed(probe.rows) if not row.in_place}
    sizes = np.array(sorted(rows))
    times = np.array([rows[size].time_s for size in sizes])
    return Collective(nodes, sizes, times, curve(len(nodes), sizes))
