"""Preflights of real nodes: what the probes on them printed, judged and kept."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
from django.db import transaction

from fleet.models import Node, Preflight, Run
from fleet.preflight.asking import PreflightError, check_names, type_of
from fleet.preflight.packing import packed
from fleet.preflight.running import finish
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.catalog import Instance
from telemetry.ingest.probes.group import GroupError, laid_out, read_group
from telemetry.simulate.probes import curve_point

MOST_FILES = 40_000
MOST_BYTES = 16 << 20
MOST_BYTES_IN_ALL = 512 << 20


def keep(
    files: Sequence[tuple[str, bytes]],
    *,
    instance_type: str = "",
    take: int | None = None,
    run: Run | None = None,
    by: str,
    now: datetime,
) -> Preflight:
    """Judge the outputs of probes, and keep them as a preflight that is over.

    Raises
    ------
    PreflightError
        Naming what is wrong; then nothing is kept.
    """
    try:
        read = read_group(files)
        names = list(read.nodes)
        check_names(names, take=take)
        kind = type_of(instance_type, Node.objects.in_bulk(names, field_name="name"))
        instance = catalog.instances()[kind]
        measured = laid_out(read, n_efa=instance.n_efa, curve=partial(expected, instance))
    except GroupError as error:
        raise PreflightError("files", str(error)) from error
    with transaction.atomic():
        preflight: Preflight = Preflight.objects.create(
            asked_by=by,
            asked_at=now,
            run=run,
            instance_type=kind,
            names=list(measured.nodes),
            take=take,
            source=Preflight.Source.FILES,
            measured=packed(measured),
        )
        finish(preflight, measured, now=now)
    return preflight


def expected(instance: Instance, n_nodes: int, sizes: FloatArray) -> FloatArray:
    """Return what an all-reduce over whole nodes should take at each size: (k,) seconds."""
    return np.array(
        [sum(curve_point(instance, n_nodes, max(1, int(size)), "all_reduce")) for size in sizes]
    )


def files_at(paths: Sequence[Path]) -> list[tuple[str, bytes]]:
    """Read files, and those right inside folders; PreflightError where one cannot be read."""
    found = list(_within(paths))
    if not found:
        raise PreflightError("files", "there are none; name files or a folder with them")
    if len(found) > MOST_FILES:
        raise PreflightError("files", f"{len(found):,} are too many; hand in {MOST_FILES:,}")
    read, n_bytes = [], 0
    for path in found:
        try:
            data = _head(path)
        except OSError as error:
            said = f"cannot read {error.filename} ({error.strerror})"
            raise PreflightError("files", said) from error
        n_bytes += len(data)
        if n_bytes > MOST_BYTES_IN_ALL:
            most = MOST_BYTES_IN_ALL >> 20
            said = f"with {path.name} they hold more than {most} MiB; hand in fewer"
            raise PreflightError("files", said)
        read.append((path.name, data))
    return read


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


def _within(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.iterdir() if each.is_file())
        else:
            yield path
