"""Chrome trace JSON, as PyTorch's Kineto profiler writes it: a file per rank, or all in one."""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.trace import BoolArray, TraceError

GZIP = b"\x1f\x8b"
MAX_BYTES = 2 * 1024**3
US = 1e-6
NS = 1e-9
DEVICE = ("kernel", "neuron", "neuroncore", "neuron_core", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"ProfilerStep#(\d+)")
RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
# NCCL, RCCL and Neuron name collectives alike but for case and hyphens.
COLLECTIVE = re.compile(
    r"all[-_ ]?reduce|reduce[-_ ]?scatter|all[-_ ]?gather|all[-_ ]?to[-_ ]?all|broadcast",
    re.IGNORECASE,
)
EXCHANGE = re.compile(r"send[-_ ]?recv|\bncclDevKernel_(?:Send|Recv)|collective[-_]?permute", re.I)
LIBRARY = re.compile(r"nccl|rccl|^cc[-_:]|neuron|collective|^(?:all|reduce)[-_ ]", re.IGNORECASE)
# PyTorch up to 2.5 writes a process group without description as nothing at all.
EMPTY_VALUE = re.compile(rb'("Process Group (?:Description|Name)"\s*:\s*)(?=[,}])')


class _Event(msgspec.Struct):
    """One event; other fields are skipped."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    ts: Any = None
    dur: Any = 0
    pid: Any = 0
    args: Any = None


class _File(msgspec.Struct):
    """One file; a bare list of events is a file, too."""

    traceEvents: list[_Event]  # noqa: N815 - their name
    distributedInfo: Any = None  # noqa: N815 - their name
    baseTimeNanoseconds: Any = 0  # noqa: N815 - their name


@dataclass(slots=True)
class RankEvents:
    """What the device of one rank did: kernels, and when steps began and ended.

    ``start_s``, ``end_s`` (n,) seconds on the rank's own clock; ``is_collective``,
    ``is_exchange`` (n,); ``group`` (n,) index into ``groups``, the ranks that take part in a
    collective, empty where the trace does not say; ``steps`` maps numbers to spans.
    """

    rank: int
    world: int | None
    start_s: FloatArray
    end_s: FloatArray
    is_collective: BoolArray
    is_exchange: BoolArray
    group: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    groups: list[tuple[int, ...]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    began_at_s: float = 0.0


def read_kineto(path: Path) -> Iterator[RankEvents]:
    """Yield the ranks of one file."""
    file = _decoded(path)
    info = file.distributedInfo if isinstance(file.distributedInfo, dict) else {}
    events = [event for event in file.traceEvents if event.ph == "X" and _is_timed(event)]
    device = [event for event in events if str(event.cat).lower() in DEVICE]
    if not device:
        raise TraceError(
            f"{path.name}: holds no kernels, only "
            f"{', '.join(sorted({str(e.cat) for e in events})[:6]) or 'nothing'}; "
            "profile the device's activity as well (ProfilerActivity.CUDA or the like)"
        )
    base_s = float(file.baseTimeNanoseconds or 0) * NS
    lanes = _lanes(path, info, device)
    for rank, own in sorted(lanes.items()):
        yield _rank_events(rank, own, events, info=info, base_s=base_s, is_alone=len(lanes) == 1)


def _decoded(path: Path) -> _File:
    """Return the file's content; what is not whole is refused."""
    if path.stat().st_size > MAX_BYTES:
        raise _too_large(path)
    try:
        raw = path.read_bytes()
        if raw[:2] == GZIP:
            with gzip.open(path) as stream:
                raw = stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path.name}: the compressed file is cut off; copy it anew") from error
    if len(raw) > MAX_BYTES:
        raise _too_large(path)
    raw = EMPTY_VALUE.sub(rb'\1""', raw)
    try:
        if raw.lstrip()[:1] == b"[":
            return _File(msgspec.json.decode(raw, type=list[_Event]))
        return msgspec.json.decode(raw, type=_File)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path.name}: is no Chrome trace: {error}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path.name}: is not complete JSON ({error}); copy it anew") from error


def _too_large(path: Path) -> TraceError:
    return TraceError(f"{path.name}: is more than 2 GiB; record fewer steps, a file per rank")


def _is_timed(event: _Event) -> bool:
    """Whether an event says when it was, in figures."""
    return isinstance(event.ts, int | float) and isinstance(event.dur, int | float)


def _lanes(path: Path, info: dict[str, Any], device: list[_Event]) -> dict[int, list[_Event]]:
    """Return the device's events by rank: as they say, as the file says, else by process."""
    lanes: dict[int, list[_Event]] = {}
    if any(_rank_of(event) is not None for event in device):
        for event in device:
            lanes.setdefault(_rank_of(event) or 0, []).append(event)
        return lanes
    if isinstance(info.get("rank"), int):
        return {info["rank"]: device}
    processes = sorted({str(event.pid) for event in device})
    if len(processes) == 1 and (named := RANK.search(path.name)):
        return {int(named.group(1)): device}
    for event in device:
        lanes.setdefault(processes.index(str(event.pid)), []).append(event)
    return lanes


def _rank_of(event: _Event) -> int | None:
    """Return the rank that an event of a merged file names."""
    rank = event.args.get("rank") if isinstance(event.args, dict) else None
    return rank if isinstance(rank, int) else None


def _rank_events(
    rank: int,
    device: list[_Event],
    events: list[_Event],
    *,
    info: dict[str, Any],
    base_s: float,
    is_alone: bool,
) -> RankEvents:
    """Make columns of one rank's events."""
    names = [str(event.name) for event in device]
    is_library = np.array([bool(LIBRARY.search(name)) for name in names])
    members = [_members(event) for event in device]
    groups = sorted(set(members))
    start_s = np.array([event.ts for event in device], "f8") * US
    lasts_s = np.array([event.dur for event in device], "f8") * US
    if not (np.isfinite(start_s).all() and (lasts_s >= 0).all() and lasts_s.max() < 86_400):
        raise TraceError(f"rank {rank}: ts and dur must be microseconds, dur 0 to a day")
    processes = {event.pid for event in device}
    own = [e for e in events if is_alone or e.pid in processes or _rank_of(e) == rank]
    world = info.get("world_size")
    return RankEvents(
        rank=rank,
        world=world if isinstance(world, int) and world > 0 else None,
        start_s=start_s,
        end_s=start_s + lasts_s,
        is_collective=is_library & np.array([bool(COLLECTIVE.search(name)) for name in names]),
        is_exchange=np.array([bool(EXCHANGE.search(name)) for name in names]),
        group=np.array([groups.index(each) for each in members]),
        groups=groups,
        steps=_steps(own) or _steps(events),
        began_at_s=base_s + float(start_s.min()),
    )


def _members(event: _Event) -> tuple[int, ...]:
    """Return the ranks that take part in a collective, empty where that is not said."""
    said = event.args.get("Process Group Ranks") if isinstance(event.args, dict) else None
    if isinstance(said, str):
        said = [int(number) for number in re.findall(r"\d+", said)] if "..." not in said else None
    return tuple(sorted(said)) if isinstance(said, list) and said else ()


def _steps(events: list[_Event]) -> dict[int, tuple[float, float]]:
    """Return when each step began and ended, by the device where it says so, else the host."""
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
