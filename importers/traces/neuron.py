"""Profiles of the Neuron runtime: Neuron Explorer's Parquet folders and neuron-profile's JSON."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from importers.traces.documents import Document
from importers.traces.ranks import (
    EXCHANGE,
    OTHER,
    WORK,
    Hardware,
    Intervals,
    RankEvents,
    busy_time,
    communication_kind,
)
from importers.traces.repeats import numbered, places_of, rarest_last, repeated_pattern
from importers.traces.trace import TraceError
from telemetry.blocks import FloatArray

NS = 1e-9
EXECUTION, COLLECTIVE, BARRIER = "nc_exec_running", "cc_running", "cc_exec_barrier"
EVENTS = (EXECUTION, COLLECTIVE, BARRIER)
TABLES = ("SystemProfileEvents", "CcOp", "ActiveTime", "HbmUsage", "Throttle", "Metadata")
NEEDED = {
    "SystemProfileEvents": ("name", "start_ts"),
    "CcOp": ("start_ts", "operation"),
    "ActiveTime": ("start_ts", "engine"),
    "HbmUsage": ("timestamp", "current_throughput"),
    "Throttle": ("timestamp", "duration"),
    "Metadata": (),
}
OPTIONAL = (
    *("end_ts", "duration_ns", "worker_gid", "instance_id", "process_id", "nc_idx", "pcore_idx"),
    *("model_id", "model_name", "extra_attributes_json", "cc_trigger_start_delay"),
    *("replica_group", "instance_type", "neuron_device_idx", "neuroncore_idx"),
)
# neuron-profile's names of the same columns.
RENAMED = {"timestamp": "start_ts", "duration": "duration_ns", "lnc_idx": "nc_idx"}
FILE = re.compile(rf"({'|'.join(TABLES)})(?:_\d+)?\.parquet")
# In the names of profiles: the rank or the core, and the instance.
INSTANCE = re.compile(r"instid[-_.]?(\d+)", re.IGNORECASE)
RANK = re.compile(r"(?:rank|worker|vnc|nc)[-_.]?(\d+)", re.IGNORECASE)
GROUP = re.compile(r"\[([\d,\s]+)\]")
# Engines that compute; the others synchronize, communicate or move data.
ENGINES = re.compile(r"tensor|vector|scalar|gpsimd|^(?:pe|act|pool|dve)$", re.IGNORECASE)

# Start and end in seconds, and what ran.
Execution = tuple[float, float, str]
Column = Sequence[Any]
Table = Mapping[str, Column]


@dataclass(slots=True)
class Profile:
    """The tables of one profile, by Neuron Explorer's names."""

    name: str
    tables: dict[str, Table] = field(default_factory=dict)


def is_table(path: Path) -> bool:
    return FILE.fullmatch(path.name) is not None


def read_tables(paths: Sequence[Path]) -> list[Profile]:
    """Read the Parquet files of profiles; each folder is one profile."""
    profiles: dict[Path, Profile] = {}
    by_table: dict[tuple[Path, str], list[pa.Table]] = defaultdict(list)
    for path in sorted(paths):
        if (match := FILE.fullmatch(path.name)) is not None:
            by_table[path.parent, match.group(1)].append(_read_table(path, match.group(1)))
    for (folder, name), parts in by_table.items():
        profile = profiles.setdefault(folder, Profile(folder.name))
        whole = pa.concat_tables(parts, promote_options="default")
        profile.tables[name] = {each: whole[each].to_pylist() for each in whole.column_names}
    return list(profiles.values())


def _read_table(path: Path, name: str) -> pa.Table:
    try:
        names = pq.read_schema(path).names
        if missing := [each for each in NEEDED[name] if each not in names]:
            raise TraceError(f"{path.name}: has no column {', '.join(missing)}")
        wanted = [each for each in (*NEEDED[name], *OPTIONAL) if each in names]
        table = pq.read_table(path, columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{path.name}: is not a complete Parquet file; copy it again") from error
    if name == "SystemProfileEvents":
        table = table.filter(pc.is_in(table["name"], pa.array(EVENTS)))
    return table


def profile_of(path: Path, document: Document) -> Profile:
    """Return neuron-profile's JSON as the same tables."""
    events = document.trace_events
    if events is not None:
        events = [row for row in events if row.get("name") in EVENTS]
    names = {
        "SystemProfileEvents": events,
        "CcOp": document.cc_ops,
        "ActiveTime": document.active_time,
    }
    profile = Profile(path.name)
    for name, rows in names.items():
        if rows is not None:
            renamed = [{RENAMED.get(key, key): row[key] for key in row} for row in rows]
            profile.tables[name] = _columns(name, renamed)
    others = {
        "HbmUsage": document.hbm_usage,
        "Throttle": document.throttle,
        "Metadata": document.metadata if isinstance(document.metadata, list) else None,
    }
    for name, rows in others.items():
        if rows:
            profile.tables[name] = _columns(name, [row for row in rows if isinstance(row, dict)])
    return profile


def _columns(table: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    names = {*NEEDED[table], *(name for row in rows for name in row)}
    return {name: [row.get(name) for row in rows] for name in names}


def ranks_of_profiles(profiles: Sequence[Profile]) -> list[RankEvents]:
    """Return the ranks of system profiles, else one per device profile.

    A system profile has the executions of every core; what runs during a collective is only in
    device profiles, each of one execution on one core.
    """
    system = [profile.tables["SystemProfileEvents"] for profile in profiles if has_system(profile)]
    device = _device_ranks(
        [profile for profile in profiles if {"CcOp", "ActiveTime"} & {*profile.tables}]
    )
    if not system:
        if not device:
            raise TraceError(
                f"{profiles[0].name}: has no events {', '.join(EVENTS)}; record with "
                "NEURON_RT_INSPECT_ENABLE=1, hardware events included"
            )
        return device
    ranks = _system_ranks(system)
    hardware = {each.rank: each.hardware for each in device}
    for rank in ranks:
        rank.hardware = hardware.get(rank.rank, Hardware())
    return ranks


def instance_of(profiles: Sequence[Profile]) -> str:
    """Return the instance type that the profiles agree on; empty if unknown."""
    types = {
        str(value)
        for profile in profiles
        for value in profile.tables.get("Metadata", {}).get("instance_type", ())
        if value
    }
    return types.pop() if len(types) == 1 else ""


def has_system(profile: Profile) -> bool:
    """Whether a profile has the runtime's events, which do not show what runs meanwhile."""
    return bool(profile.tables.get("SystemProfileEvents", {}).get("name"))


def _numbers(table: Table, name: str) -> FloatArray:
    """Return a column as numbers, NaN where unknown; some profiles write numbers as text."""
    try:
        return np.array([np.nan if x in (None, "") else float(x) for x in table[name]], "f8")
    except (TypeError, ValueError) as error:
        raise TraceError(f"{name}: must be numbers") from error


def _times(table: Table, base_ns: int) -> Intervals:
    """Return start and end in seconds after ``base_ns``."""
    start = np.array([_whole(value) - base_ns for value in table["start_ts"]], "f8") * NS
    if "duration_ns" in table:
        return start, start + _numbers(table, "duration_ns") * NS
    if "end_ts" not in table:
        raise TraceError("end_ts: has no such column, nor duration_ns")
    return start, np.array([_whole(value) - base_ns for value in table["end_ts"]], "f8") * NS


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise TraceError(f"{value!r} is not a whole number (of nanoseconds, or a core)") from error


def _system_ranks(tables: Sequence[Table]) -> list[RankEvents]:
    base_ns = min(_whole(value) for table in tables for value in table["start_ts"])
    cores: dict[tuple[Any, ...], list[tuple[Table, list[int]]]] = {}
    for n, table in enumerate(tables):
        rows: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for i in range(len(table["name"])):
            rows[_core(table, i, n)].append(i)
        for core, own in rows.items():
            cores.setdefault(core, []).append((table, own))
    ranks, executions = [], []
    for number, core in enumerate(sorted(cores, key=repr)):
        columns: dict[str, list[Any]] = {}
        for table, own in cores[core]:
            for name in table:
                columns.setdefault(name, []).extend(table[name][i] for i in own)
        is_numbered = len(core) == 1 and len({len(each) for each in cores}) == 1
        rank = _whole(core[0]) if is_numbered else number
        ranks.append(_core_events(rank, columns, base_ns))
        executions.append(_executions(columns, base_ns))
    if all(each.waits is None or not len(each.waits[0]) for each in ranks):
        # No core recorded barriers: they were filtered out.
        for each in ranks:
            each.waits = None
    _mark_steps(ranks, executions)
    return sorted(ranks, key=lambda each: each.rank)


def _core(table: Table, row: int, profile: int) -> tuple[Any, ...]:
    """Return what names a core: its number in the job, else its process and number there."""
    worker = table["worker_gid"][row] if "worker_gid" in table else None
    if worker is not None:
        return (_whole(worker),)
    names = ("instance_id", "process_id", "nc_idx")
    return (profile, *(str(table[name][row]) if name in table else "" for name in names))


def _core_events(rank: int, columns: Table, base_ns: int) -> RankEvents:
    """Return the events of a core. Executions contain collectives: the rest of them is work."""
    start_s, end_s = _times(columns, base_ns)
    name = np.array(columns["name"])
    pcore = _numbers(columns, "pcore_idx") if "pcore_idx" in columns else np.zeros(len(name))
    exchange = name != EXECUTION
    executing = start_s[~exchange], end_s[~exchange]
    work = without(executing, (start_s[exchange], end_s[exchange]))
    barrier = name == BARRIER
    collective = name == COLLECTIVE
    first = np.nanmin(pcore[collective], initial=np.inf)
    cuts = (collective & ~(pcore > first))[exchange]
    kind = np.append(np.full(len(cuts), EXCHANGE), np.full(len(work[0]), WORK))
    return RankEvents(
        rank=rank,
        world=None,
        start_s=np.append(start_s[exchange], work[0]),
        end_s=np.append(end_s[exchange], work[1]),
        kind=kind,
        group=np.zeros(len(kind), "i8"),
        groups=[()],
        began_at_s=base_ns * NS,
        cuts=np.append(cuts, np.zeros(len(work[0]), bool)),
        waits=(start_s[barrier], end_s[barrier]),
    )


def without(one: Intervals, other: Intervals) -> Intervals:
    edges = np.unique(np.concatenate([*one, *other]))
    middle = (edges[1:] + edges[:-1]) / 2
    inside = [np.zeros(len(middle), bool), np.zeros(len(middle), bool)]
    for row, intervals in zip(inside, (one, other), strict=True):
        knots, _ = busy_time(*intervals)
        if len(intervals[0]):
            row[:] = np.searchsorted(knots, middle) % 2 == 1
    kept = inside[0] & ~inside[1]
    return edges[:-1][kept], edges[1:][kept]


def _executions(columns: Table, base_ns: int) -> list[Execution]:
    """Return start, end and model of the executions on a core's first physical core."""
    start_s, end_s = _times(columns, base_ns)
    rows = [i for i, name in enumerate(columns["name"]) if name == EXECUTION]
    pcores = [columns["pcore_idx"][i] if "pcore_idx" in columns else None for i in rows]
    first = min(map(str, pcores), default="")
    kept = [i for i, pcore in zip(rows, pcores, strict=True) if str(pcore) == first]
    return sorted((float(start_s[i]), float(end_s[i]), _model(columns, i)) for i in kept)


def _model(columns: Table, row: int) -> str:
    """Return what an execution ran; empty if the profile does not say."""
    more: Any = {}
    with suppress(LookupError, TypeError, ValueError):
        more = json.loads(columns["extra_attributes_json"][row])
    for name in ("model_id", "model_name"):
        value = columns[name][row] if name in columns else None
        value = value or (more.get(name) if isinstance(more, dict) else None)
        if value is not None:
            return str(value)
    return ""


def _mark_steps(ranks: list[RankEvents], executions: list[list[Execution]]) -> None:
    """Set the steps: repeats of the pattern of executed graphs, at the same time on all."""
    reference: list[tuple[float, float]] = []
    for each, own in zip(ranks, executions, strict=True):
        labels = [model for _, _, model in own]
        pattern = repeated_pattern(labels)
        pattern = rarest_last(pattern) if pattern else ()
        places = places_of(pattern, labels)
        spans = [(own[at][0], own[at + len(pattern) - 1][1]) for at in places]
        reference = reference or spans
        each.steps = numbered(spans, reference)


def _device_ranks(profiles: Sequence[Profile]) -> list[RankEvents]:
    """Return one rank per core, of its profiles the longest: a core executes several graphs."""
    by_core: dict[tuple[int, ...], list[RankEvents]] = defaultdict(list)
    for number, profile in enumerate(sorted(profiles, key=lambda each: each.name)):
        core = _core_of(profile) or (number,)
        by_core[core].append(_device_rank(core[-1], profile))
    longest = [max(by_core[core], key=lambda each: each.end_s.max()) for core in sorted(by_core)]
    if len({each.rank for each in longest}) < len(longest):
        # Cores of several instances, or of several devices.
        for number, each in enumerate(longest):
            each.rank = number
    return longest


def _core_of(profile: Profile) -> tuple[int, ...] | None:
    """Return what names a core: the numbers in the profile's name, else those it recorded."""
    if (named := RANK.search(profile.name)) is not None:
        instance = INSTANCE.search(profile.name)
        return int(instance.group(1)) if instance else 0, int(named.group(1))
    recorded = profile.tables.get("Metadata", {})
    with suppress(LookupError, TypeError, ValueError):
        device, core = (int(recorded[name][0]) for name in ("neuron_device_idx", "neuroncore_idx"))
        return device, core
    return None


def _device_rank(rank: int, profile: Profile) -> RankEvents:
    none: Table = {"start_ts": [], "duration_ns": [], "operation": [], "engine": []}
    operations = profile.tables.get("CcOp", none)
    active = profile.tables.get("ActiveTime", none)
    starts = [*operations["start_ts"], *active["start_ts"]]
    if not starts:
        raise TraceError(f"{profile.name}: has no collective and no activity of an engine")
    base_ns = min(map(_whole, starts))
    start_s, end_s = _times(operations, base_ns)
    engines = np.array([bool(ENGINES.search(str(name))) for name in active["engine"]], bool)
    began_s, ended_s = _times(active, base_ns)
    work = began_s[engines], ended_s[engines]
    if not engines.any():
        raise TraceError(f"{profile.name}: has no ActiveTime of the engines that compute")
    members = [_members(value, rank) for value in operations.get("replica_group", ())]
    members = members or [()] * len(start_s)
    groups = sorted({*members, ()})
    kinds = [communication_kind(str(name)) or OTHER for name in operations["operation"]]
    is_known = "cc_trigger_start_delay" in operations
    delay_ns = _numbers(operations, "cc_trigger_start_delay") if is_known else 0.0 * start_s
    waits = start_s - np.nan_to_num(delay_ns) * NS, start_s
    group = np.array([groups.index(member) for member in members], "i8")
    n_work = len(work[0])
    return RankEvents(
        rank=rank,
        world=None,
        start_s=np.concatenate([start_s, waits[0], work[0]]),
        end_s=np.concatenate([end_s, waits[1], work[1]]),
        kind=np.concatenate([kinds, kinds, np.full(n_work, WORK)]).astype("i8"),
        group=np.concatenate([group, group, np.zeros(n_work, "i8")]),
        groups=groups,
        began_at_s=base_ns * NS,
        cuts=np.repeat([True, False, False], [len(start_s), len(start_s), n_work]),
        waits=waits if is_known else None,
        hardware=_hardware(profile, end_s=float(max(end_s.max(initial=0.0), work[1].max()))),
    )


def _members(value: Any, rank: int) -> tuple[int, ...]:
    """Return the group of ``[[0, 1], [2, 3]]`` that has the rank, else the first."""
    groups = [tuple(map(int, re.findall(r"\d+", each))) for each in GROUP.findall(str(value))]
    mine = [group for group in groups if rank in group] or groups
    return tuple(sorted(mine[0])) if mine else ()


def _hardware(profile: Profile, *, end_s: float) -> Hardware:
    hardware = Hardware()
    usage = profile.tables.get("HbmUsage")
    if usage and usage["timestamp"]:
        rate = np.nan_to_num(_numbers(usage, "current_throughput"))
        pcores = map(str, usage.get("pcore_idx", [0] * len(rate)))
        moments = _numbers(usage, "timestamp").tolist()
        # The physical cores of a logical core are sampled apart.
        by_core: dict[str, list[float]] = defaultdict(list)
        at: dict[float, float] = defaultdict(float)
        for moment, core, value in zip(moments, pcores, rate.tolist(), strict=True):
            by_core[core].append(value)
            at[moment] += value
        hardware["hbm_bytes_per_s"] = float(sum(map(np.mean, by_core.values())))
        hardware["hbm_peak_bytes_per_s"] = max(at.values())
    throttle = profile.tables.get("Throttle")
    if throttle is not None and end_s > 0:
        begin = np.asarray(_numbers(throttle, "timestamp") * NS)
        _, done = busy_time(begin, begin + _numbers(throttle, "duration") * NS)
        hardware["throttled_ratio"] = min(1.0, float(done[-1]) / end_s)
    return hardware
