"""Chrome traces of the device's kernels, as PyTorch's profiler (Kineto) writes them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from importers.traces.documents import Document, Event
from importers.traces.ranks import OTHER, WORK, RankEvents, communication_kind
from importers.traces.trace import TraceError
from trnwatch.nccl_inspector import is_model_parallel

US = 1e-6
NS = 1e-9
DEVICE = ("kernel", "neuron", "neuroncore", "neuron_core", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"ProfilerStep#(\d+)")
RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
MEMORY = ("gpu_memcpy", "gpu_memset")
# How the names of communication kernels begin: libraries, and operations of Neuron's compiler.
# Other kernels are named for what they compute, such as permute, gather or reduce.
LIBRARY = re.compile(
    r"(?:void )?(?:\w+::)*(?:[nr]ccl|mscclpp|deep_ep|nvshmem|cross_device_reduce"
    r"|(?:one|two)_shot_all_?reduce|multimem_)|(?:%\w*)?cc[-_:]",
    re.IGNORECASE,
)
OPERATION = re.compile(
    r"%?(?:all-(?:reduce|gather|to-all)|reduce-scatter|collective-(?:permute|broadcast)"
    r"|send|recv)(?:[-.: ](?:start|done|clone|remat|\d+))*$",
    re.IGNORECASE,
)
COLLECTIVE = re.compile(
    r"all[-_ ]?reduce|reduce[-_ ]?scatter|all[-_ ]?gather|broadcast|reduce", re.IGNORECASE
)


def read_kineto(path: Path, file: Document) -> Iterator[RankEvents]:
    info = file.distributedInfo if isinstance(file.distributedInfo, dict) else {}
    events = [
        event
        for event in file.traceEvents or ()
        if event.ph == "X"
        and isinstance(event.ts, int | float)
        and isinstance(event.dur, int | float)
    ]
    if file.traceEvents and not events:
        kinds = ", ".join(sorted({str(event.ph) for event in file.traceEvents})[:6])
        raise TraceError(
            f"{path.name}: has no complete events (ph X, with ts and dur as numbers) among ph "
            f"{kinds}; export complete events"
        )
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
        group=np.array([groups.index(member) for member in members]),
        groups=groups,
        apart=frozenset(
            group
            for group, event in zip(members, device, strict=True)
            if is_model_parallel({"comm_name": _argument(event, "Process Group Description")})
        ),
        steps=_steps(own) or _steps(events),
        names=[_collective(event) for event in device],
        began_at_s=base_s + float(start_s.min()),
    )


def _argument(event: Event, name: str) -> Any:
    return event.args.get(name) if isinstance(event.args, dict) else None


def _kind(event: Event) -> int:
    """Return what an event is, by PyTorch's name of the collective, else by the kernel's library.

    NCCL exchanges tokens between all by a kernel that is named after sending and receiving.
    """
    name, described = str(event.name), _argument(event, "Collective name")
    if isinstance(described, str) and described:
        return communication_kind(described.lstrip("_")) or communication_kind(name) or OTHER
    if str(event.cat).lower() in MEMORY:
        return WORK
    is_communication = LIBRARY.match(name) or OPERATION.match(name.replace("_", "-"))
    return (communication_kind(name) or OTHER) if is_communication else WORK


def _collective(event: Event) -> str:
    """Return the collective that an event is: all-reduce, all-gather …, spelled in one way."""
    for name in (_argument(event, "Collective name"), event.name):
        if isinstance(name, str) and (known := COLLECTIVE.search(name)):
            return re.sub(r"[-_ ]", "", known[0]).lower()
    return ""


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
            if str(event.cat) in cats and (match := STEP.search(str(event.name))):
                number, begin = int(match.group(1)), event.ts * US
                first, last = spans.get(number, (begin, begin))
                spans[number] = min(first, begin), max(last, begin + event.dur * US)
        if spans:
            return spans
    return {}
