"""Chrome traces of the device's kernels, as PyTorch's profiler (Kineto) writes them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from telemetry.ingest.traces.documents import Document, Event
from telemetry.ingest.traces.ranks import OTHER, SEND, WORK, RankEvents, communication_kind
from telemetry.trace import TraceError
from trnwatch.nccl_inspector import is_model_parallel

US = 1e-6
NS = 1e-9
DEVICE = ("kernel", "neuron", "neuroncore", "neuron_core", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"ProfilerStep#(\d+)")
RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
LIBRARY = re.compile(r"nccl|rccl|^cc[-_:]|neuron|collective|^(?:all|reduce)[-_ ]", re.IGNORECASE)
# Kernels of communication libraries whose name does not say what they do.
UNNAMED = re.compile(r"[nr]ccl\w*kernel|deep_ep|nvshmem|cross_device_reduce", re.IGNORECASE)


def read_kineto(path: Path, file: Document) -> Iterator[RankEvents]:
    info = file.distributedInfo if isinstance(file.distributedInfo, dict) else {}
    events = [
        event
        for event in file.traceEvents or ()
        if event.ph == "X"
        and isinstance(event.ts, int | float)
        and isinstance(event.dur, int | float)
    ]
    device = [event for event in events if str(event.cat).lower() in DEVICE]
    if not device:
        raise TraceError(
            f"{path.name}: has no kernels, only "
            f"{', '.join(sorted({str(e.cat) for e in events})[:6]) or 'nothing'}; "
            "profile the device as well (such as ProfilerActivity.CUDA)"
        )
    base_s = float(file.baseTimeNanoseconds or 0) * NS
    streams = _by_stream(path, info, device)
    for rank, own in sorted(streams.items()):
        yield _rank_events(rank, own, events, info=info, base_s=base_s, is_alone=len(streams) == 1)


def _by_stream(path: Path, info: dict[str, Any], device: list[Event]) -> dict[int, list[Event]]:
    """Return the device's events by rank: the event's, the file's, else one per process."""
    streams: dict[int, list[Event]] = {}
    if any(_rank_of(event) is not None for event in device):
        for event in device:
            streams.setdefault(_rank_of(event) or 0, []).append(event)
        return streams
    if isinstance(info.get("rank"), int):
        return {info["rank"]: device}
    processes = sorted({str(event.pid) for event in device})
    if len(processes) == 1:
        for name in (path.name, path.parent.name):
            if named := RANK.search(name):
                return {int(named.group(1)): device}
    for event in device:
        streams.setdefault(processes.index(str(event.pid)), []).append(event)
    return streams


def _rank_of(event: Event) -> int | None:
    """Return an event's rank; only merged files have it."""
    rank = _argument(event, "rank")
    return rank if isinstance(rank, int) else None


def _rank_events(
    rank: int,
    device: list[Event],
    events: list[Event],
    *,
    info: dict[str, Any],
    base_s: float,
    is_alone: bool,
) -> RankEvents:
    members = [_members(event) for event in device]
    groups = sorted(set(members))
    start_s = np.array([event.ts for event in device], "f8") * US
    took_s = np.array([event.dur for event in device], "f8") * US
    processes = {event.pid for event in device}
    own = [e for e in events if is_alone or e.pid in processes or _rank_of(e) == rank]
    world = info.get("world_size")
    return RankEvents(
        rank=rank,
        world=world if isinstance(world, int) and world > 0 else None,
        start_s=start_s,
        end_s=start_s + took_s,
        kind=np.array([_kind(event) for event in device]),
        group=np.array([groups.index(each) for each in members]),
        groups=groups,
        apart=frozenset(
            group
            for group, event in zip(members, device, strict=True)
            if is_model_parallel({"comm_name": _argument(event, "Process Group Description")})
        ),
        steps=_steps(own) or _steps(events),
        began_at_s=base_s + float(start_s.min()),
    )


def _argument(event: Event, name: str) -> Any:
    return event.args.get(name) if isinstance(event.args, dict) else None


def _kind(event: Event) -> int:
    """Return what an event is, by PyTorch's name of the collective, else by the kernel's.

    NCCL exchanges tokens between all by a kernel that is named after sending and receiving.
    """
    described = _argument(event, "Collective name")
    if isinstance(described, str) and (kind := communication_kind(described.lstrip("_"))):
        return kind
    name = str(event.name)
    kind = communication_kind(name)
    if kind == SEND or (kind and LIBRARY.search(name)):
        return kind
    return OTHER if UNNAMED.search(name) else WORK


def _members(event: Event) -> tuple[int, ...]:
    """Return the ranks of a collective's group; empty if unknown."""
    ranks = _argument(event, "Process Group Ranks")
    if isinstance(ranks, str):
        ranks = None if "..." in ranks else [int(number) for number in re.findall(r"\d+", ranks)]
    return tuple(sorted(ranks)) if isinstance(ranks, list) and ranks else ()


def _steps(events: list[Event]) -> dict[int, tuple[float, float]]:
    """Return the span of each step, by the device's annotations, else the host's."""
    for cats in (("gpu_user_annotation",), ("user_annotation", "cpu_op", "python_function", "")):
        spans: dict[int, tuple[float, float]] = {}
        for event in events:
            if str(event.cat) in cats and (found := STEP.search(str(event.name))):
                number, begin = int(found.group(1)), event.ts * US
                first, last = spans.get(number, (begin, begin))
                spans[number] = min(first, begin), max(last, begin + event.dur * US)
        if spans:
            return spans
    return {}
