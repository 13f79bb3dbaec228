"""All that a preflight measured as bytes to keep, and back."""

from dataclasses import fields, replace
from io import BytesIO
from typing import Any

import numpy as np

from telemetry.preflight.measured import Collective, Measured

PLAIN = tuple(
    each.name
    for each in fields(Measured)
    if each.name not in {"nodes", "rest", "rest_s", "collectives"}
)


def packed(measured: Measured) -> bytes:
    """Return what was measured as bytes; figures keep seven digits."""
    arrays: dict[str, Any] = {name: getattr(measured, name).astype("f4") for name in PLAIN}
    arrays |= {f"rest:{name}": moved for name, moved in measured.rest.items()}
    for i, each in enumerate(measured.collectives):
        arrays[f"collective:{i}:nodes"] = np.array([*each.nodes, each.op], dtype=np.str_)
        arrays[f"collective:{i}"] = np.array([each.size_bytes, each.time_s, each.expected_s])
    file = BytesIO()
    np.savez_compressed(
        file,
        allow_pickle=False,
        nodes=np.array(measured.nodes, dtype=np.str_),
        rest_s=np.array(measured.rest_s),
        **arrays,
    )
    return file.getvalue()


def unpacked(data: bytes) -> Measured:
    """Return what was packed."""
    with np.load(BytesIO(data), allow_pickle=False) as kept:
        held = {name: kept[name] for name in kept.files}
    nodes = tuple(str(name) for name in held["nodes"])
    n_collectives = sum(name.endswith(":nodes") for name in held)
    blank = Measured.nothing_of(nodes, n_efa=0)
    return replace(
        blank,
        **{name: held[name].astype(float) for name in PLAIN},
        rest={n.removeprefix("rest:"): v for n, v in held.items() if n.startswith("rest:")},
        rest_s=float(held["rest_s"]),
        collectives=tuple(_collective(held, i) for i in range(n_collectives)),
    )


def _collective(held: dict[str, Any], i: int) -> Collective:
    *nodes, op = (str(name) for name in held[f"collective:{i}:nodes"])
    size_bytes, time_s, expected_s = held[f"collective:{i}"]
    return Collective(tuple(nodes), size_bytes, time_s, expected_s, op)
