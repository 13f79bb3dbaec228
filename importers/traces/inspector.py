"""NCCL Inspector's records as a trace: one file of JSON lines per process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from importers.traces.documents import decode, text_of
from importers.traces.neuron import without
from importers.traces.ranks import EXCHANGE, OTHER, SEND, WORK, RankEvents
from importers.traces.repeats import (
    longest_gap_first,
    numbered,
    places_of,
    repeated_pattern,
    starts_after_pauses,
)
from importers.traces.trace import TraceError
from telemetry.blocks import FloatArray
from trnwatch import nccl_inspector
from trnwatch.nccl_inspector import DROPPED, KNOWN, is_model_parallel, kernel_began_us
from trnwatch.runtime_trace import RuntimeTraceError, number_of

US = 1e-6
SENDS = ("Send", "Recv")


@dataclass(frozen=True, slots=True)
class Record:
    """One operation of a process; ``communicator`` is its identifier."""

    start_us: float
    took_us: float
    kind: int
    communicator: str
    label: tuple[str, str]


@dataclass(slots=True)
class ProcessRecords:
    """``headers`` are those of its communicators, by identifier; dropped records are lost."""

    name: str
    records: list[Record] = field(default_factory=list)
    headers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    n_dropped: int = 0


def is_inspector(head: bytes) -> bool:
    """Whether a file begins with one of the Inspector's records."""
    line = head.lstrip().partition(b"\n")[0]
    return any(f'"{key}"'.encode() in line for key in KNOWN)


def read_records(path: Path) -> ProcessRecords:
    records = ProcessRecords(path.name)
    communicator = ""
    lines = text_of(path).splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry: Any = decode(line, object)
        except msgspec.DecodeError as error:
            if number == len(lines):
                break  # The process ended while it wrote.
            raise TraceError(f"{path.name}: line {number} is not JSON: {error}") from error
        if not isinstance(entry, dict):
            continue
        if isinstance(header := entry.get("header"), dict):
            communicator = str(header.get("id"))
            records.headers[communicator] = header
        stats = entry.get("dump_stats")
        if isinstance(stats, dict):
            records.n_dropped += sum(int(number_of(stats.get(name)) or 0) for name in DROPPED)
        for kind in ("coll", "p2p"):
            operation = entry.get(f"{kind}_perf")
            if isinstance(operation, dict):
                header = records.headers.get(communicator, {})
                _add(records, kind, operation, communicator, header)
    if not records.records:
        raise TraceError(f"{path.name}: has no records of operations")
    return records


def _add(
    found: ProcessRecords,
    kind: str,
    operation: Mapping[str, Any],
    communicator: str,
    header: Mapping[str, Any],
) -> None:
    try:
        start_us = kernel_began_us(kind, operation)
    except RuntimeTraceError as error:
        raise TraceError(f"{found.name}: {error}") from error
    took_us = number_of(operation.get(f"{kind}_exec_time_us"))
    if start_us is None or took_us is None:
        return
    name = str(operation.get(kind))
    what = EXCHANGE if name in nccl_inspector.EXCHANGE else SEND if name in SENDS else OTHER
    if what == EXCHANGE and is_model_parallel(header):
        what = OTHER
    label = (name, str(operation.get(f"{kind}_msg_size_bytes")))
    found.records.append(Record(start_us, took_us, what, communicator, label))


def ranks_of_records(processes: Sequence[ProcessRecords]) -> list[RankEvents]:
    """Return one rank per process: its rank in the largest communicator, else their order."""
    processes = sorted(processes, key=lambda each: each.name)
    known = [max(map(_place, process.headers.values()), default=(0, 0)) for process in processes]
    world = max(n for n, _ in known)
    numbers = [rank for n, rank in known if n == world and n]
    if len(set(numbers)) < len(processes):
        numbers = list(range(len(processes)))
    members: dict[str, list[int]] = {}
    for rank, each in zip(numbers, processes, strict=True):
        for communicator in each.headers:
            members.setdefault(communicator, []).append(rank)
    base_us = min(record.start_us for process in processes for record in process.records)
    ranks: list[RankEvents] = []
    reference: list[tuple[float, float]] = []
    for rank, each in zip(numbers, processes, strict=True):
        each.records.sort(key=lambda record: (record.start_us, record.took_us))
        spans = _steps(each.records, base_us)
        reference = reference or spans
        ranks.append(_events(rank, each.records, members, base_us))
        ranks[-1].world = world or None
        ranks[-1].steps = numbered(spans, reference)
    return ranks


def _place(header: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size of a communicator and the rank in it, zeros if unknown."""
    n_ranks, rank = header.get("n_ranks"), header.get("rank")
    return (n_ranks, rank) if isinstance(n_ranks, int) and isinstance(rank, int) else (0, 0)


def _events(
    rank: int, records: Sequence[Record], members: Mapping[str, list[int]], base_us: float
) -> RankEvents:
    """Return a rank's events. The time between operations is work: nothing else is recorded."""
    start_s = _seconds(record.start_us - base_us for record in records)
    end_s = start_s + _seconds(record.took_us for record in records)
    work = without((start_s[:1], end_s.max(keepdims=True)), (start_s, end_s))
    groups = [tuple(sorted(ranks)) for ranks in members.values()]
    groups = sorted({*groups, ()})
    group = [groups.index(tuple(sorted(members.get(each.communicator, [])))) for each in records]
    n_work = len(work[0])
    return RankEvents(
        rank=rank,
        world=None,
        start_s=np.append(start_s, work[0]),
        end_s=np.append(end_s, work[1]),
        kind=np.append([record.kind for record in records], np.full(n_work, WORK)),
        group=np.append(group, np.full(n_work, groups.index(()))),
        groups=groups,
        began_at_s=base_us * US,
    )


def _seconds(values: Any) -> FloatArray:
    return np.array(list(values), "f8") * US


def _steps(records: Sequence[Record], base_us: float) -> list[tuple[float, float]]:
    """Return the spans of the steps: a step begins with the longest pause of its pattern."""
    used = [record for record in records if record.kind == EXCHANGE] or list(records)
    labels = [(record.communicator, record.label) for record in used]
    pattern = repeated_pattern(labels)
    if not pattern:
        return []
    begin_s = _seconds(record.start_us - base_us for record in used)
    reach_s = np.maximum.accumulate(begin_s + _seconds(record.took_us for record in used))
    before_s = np.append(begin_s[0], reach_s[:-1])
    gaps_s = begin_s - before_s
    if len(pattern) == 1:
        starts, length = starts_after_pauses(gaps_s)
    else:
        starts = places_of(longest_gap_first(pattern, labels, gaps_s), labels)
        length = len(pattern)
    # When the first operation's step began is not recorded.
    return [(float(before_s[at]), float(reach_s[at + length - 1])) for at in starts if at]
