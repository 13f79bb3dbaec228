"""`manage.py import_log` as tests call it, and the stored result."""

import json
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from telemetry.store.models import RunChunk

Write = Callable[..., Path]
A, B = "MODULE_11+aa", "MODULE_22+bb"
BROKEN = "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR hostname=steady nd-id=3 action=TERMINATE_INSTANCE"


def dated(seconds: float) -> str:
    """Write a moment of yesterday: steps of long ago are moved."""
    moment = time.gmtime(int(time.time()) // 86_400 * 86_400 - 86_400 + seconds)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)


def imported(*files: Path, run: str = "logged", **options: Any) -> dict[str, Any]:
    out = StringIO()
    options.setdefault("stderr", StringIO())
    call_command("import_log", *map(str, files), run=run, json=True, stdout=out, **options)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def refused(*files: Path, run: str = "logged", **options: Any) -> str:
    with pytest.raises(CommandError) as reported:
        imported(*files, run=run, **options)
    assert reported.value.returncode == 2
    return str(reported.value)


def n_stored(run: str = "logged") -> int:
    return sum(chunk.n_steps for chunk in RunChunk.objects.filter(run=run))
