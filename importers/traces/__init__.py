"""Ingest of recorded traces: tables of operations, and what profilers of devices recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from importers.traces.documents import head_of, read_document
from importers.traces.inspector import is_inspector, ranks_of_records, read_records
from importers.traces.kineto import read_kineto
from importers.traces.neuron import (
    has_system,
    instance_of,
    is_table,
    profile_of,
    ranks_of_profiles,
    read_tables,
)
from importers.traces.operations import read_parquet
from importers.traces.ranks import RankEvents, trace_of_ranks
from importers.traces.trace import Trace, TraceError

PARQUET = b"PAR1"
LINES = (".log", ".jsonl")
ENDINGS = (".json", ".json.gz", ".parquet", *LINES)


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read a table of operations, or the files of one job; of a folder, all in and below it."""
    files: list[Path] = []
    for path in paths:
        readable = [path]
        if path.is_dir():
            readable = sorted(file for file in path.rglob("*") if file.name.endswith(ENDINGS))
            # Neuron Explorer writes many tables that are not needed; other logs may lie beside.
            logs = [file for file in readable if file.suffix in LINES]
            readable = [file for file in readable if is_table(file)] or [
                file for file in readable if file not in logs or is_inspector(head_of(file))
            ]
        if not readable:
            raise TraceError(f"{path.name}: holds no file that ends in {', '.join(ENDINGS)}")
        files += readable
    heads = {file: head_of(file) for file in files}
    if empty := [file.name for file, head in heads.items() if not head]:
        raise TraceError(f"{empty[0]}: is empty; copy it again")
    tables = [file for file in files if is_table(file)]
    parquet = [file for file in files if heads[file][:4] == PARQUET and file not in tables]
    if parquet and len(files) > 1:
        raise TraceError(f"{parquet[0].name}: a Parquet trace is one file; give it alone")
    if parquet:
        return read_parquet(parquet[0])
    records = [file for file in files if is_inspector(heads[file])]
    if records and len(records) < len(files):
        raise TraceError(f"{records[0].name}: give NCCL Inspector's files apart from others")
    if records:
        processes = [read_records(file) for file in records]
        trace = trace_of_ranks(ranks_of_records(processes), shows_overlap=False)
        return replace(trace, n_dropped=sum(process.n_dropped for process in processes))
    return _profiled(heads, tables)


def _profiled(heads: dict[Path, bytes], tables: Sequence[Path]) -> Trace:
    """Read Chrome traces, or profiles of the Neuron runtime."""
    ranks: list[RankEvents] = []
    profiles = read_tables(tables)
    for file, head in heads.items():
        if file in tables:
            continue
        if head.lstrip()[:1] not in (b"{", b"["):
            raise TraceError(
                f"{file.name}: is neither Parquet nor JSON (gzipped or not); give a trace of "
                "one row per operation, or what a profiler wrote (docs/traces.md)"
            )
        document = read_document(file)
        if document.traceEvents is None:
            profiles.append(profile_of(file, document))
        else:
            ranks += read_kineto(file, document)
    if profiles and ranks:
        raise TraceError(f"{profiles[0].name}: give Chrome traces and Neuron's profiles apart")
    if profiles:
        shows_overlap = not any(map(has_system, profiles))
        trace = trace_of_ranks(ranks_of_profiles(profiles), shows_overlap=shows_overlap)
        return replace(trace, instance=instance_of(profiles))
    return trace_of_ranks(ranks)
