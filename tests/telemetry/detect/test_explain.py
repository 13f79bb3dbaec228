"""Effects that a row of causes.toml predicts are named as that row, in its place."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from telemetry.detect.causes import CLASS_OF, CLASSES, SIGNATURES, UNKNOWN, Signature
from telemetry.detect.explain import (
    NAMED,
    at_place,
    explain,
    log_likelihood,
)
from telemetry.detect.quantities import BY_EVIDENCE, EVERYWHERE, OF_PLACE
from telemetry.detect.shifts import Effect, Effects
from telemetry.statistics.peers import scatter_of

N_NODES, HERE = 8, 3
# Parts of a node by quantity; the others are one value per node.
N_PARTS = {
    name: 8 if each.part == "core" and not each.by_device else 4
    for name, each in BY_EVIDENCE.items()
    if each.part != "node"
}
PART = 2
OF_RUN = ("compute", "transfer", "input", "wait", "other", "uneven", "stage", "jitter", "traffic")
ERROR = 0.004
# Of hardware a problem shows its own size; a device without traffic has none.
SIZE, OF_HARDWARE, OF_BYTES = 0.2, 0.4, -0.99
OF_HARDWARE_SIZES = {"bytes": OF_BYTES, "power": 0.1}


def effects_of(
    sizes: Mapping[str, float], *, place: int | None, scattered: frozenset[str] = frozenset()
) -> dict[str, Effect]:
    """Return effects of all quantities: these at a place, or of all nodes; the others are zero."""
    found = {name: Effect(np.asarray(0.0), np.asarray(ERROR)) for name in OF_RUN}
    for name in OF_PLACE:
        shape = (N_NODES, N_PARTS[name]) if name in N_PARTS else (N_NODES,)
        found[name] = Effect(np.zeros(shape), np.full(shape, ERROR))
    for name, size in sizes.items():
        array = np.array(found[name].size)
        if name not in OF_PLACE or place is None:
            array[...] = size
        else:
            array[(place, PART) if array.ndim == 2 else place] = size
        found[name] = replace(found[name], size=array)
    for name, of_all in EVERYWHERE.items():
        if of_all != name:
            of_run = np.asarray(sizes.get(name, 0.0) if place is None else 0.0)
            found[of_all] = Effect(of_run, np.asarray(ERROR))
    for name in scattered:
        by_turns = SIZE * np.array([1, -1, 0.5, -0.5, 0.8, -0.8, 0.3, -0.3])
        found[name] = replace(found[name], size=by_turns)
    return found


def predicted(row: Signature) -> dict[str, Effect]:
    """Return the effects that a row predicts."""
    sizes = {name: _size(name) for name in row.raises}
    sizes |= {name: -abs(_size(name)) for name in row.lowers}
    return effects_of(sizes, place=None if row.scope == "run" else HERE, scattered=row.scatters)


def _size(name: str) -> float:
    is_hardware = name in OF_PLACE and name not in ("own_compute", "own_input")
    return OF_HARDWARE_SIZES.get(name, OF_HARDWARE) if is_hardware else SIZE


def explained(effects: Effects, *nodes: int) -> tuple[str, int | None]:
    found = explain(effects, nodes or (HERE,), n_nodes=N_NODES)
    assert sum(found.weights.values()) == pytest.approx(1.0)
    return found.cause, found.node


def title(row: Signature) -> str:
    return f"{row.name}-{row.scope}"


@pytest.mark.parametrize("row", SIGNATURES, ids=title)
def test_what_a_row_predicts_is_named_as_it_in_its_place(row: Signature) -> None:
    found = explain(predicted(row), (HERE, HERE + 1), n_nodes=N_NODES)

    assert found.cause == row.name
    assert found.weights[row.name] >= NAMED
    assert found.node == (HERE if row.scope == "node" else None)
    assert found.signature is not None
    assert (found.signature.name, found.signature.scope) == (row.name, row.scope)
    shows_part = row.scope == "node" and any(row.sign(name) for name in N_PARTS)
    assert found.part == (PART if shows_part else None)


def decisive(row: Signature) -> list[str]:
    """Return the quantities that tell the causes of a class apart in a place."""
    class_name = CLASS_OF[row.name]
    rows = [r for r in SIGNATURES if CLASS_OF.get(r.name) == class_name and r.scope == row.scope]
    known = [*OF_RUN, *sorted(OF_PLACE)]
    return [name for name in known if len({each.sign(name) for each in rows}) > 1]


@pytest.mark.parametrize("row", [r for r in SIGNATURES if r.name in CLASS_OF], ids=title)
def test_without_what_is_decisive_the_class_is_named(row: Signature) -> None:
    effects = predicted(row)
    for name in decisive(row):
        missing = np.full_like(effects[name].size, np.nan)
        effects[name] = Effect(missing, missing)

    cause, node = explained(effects)

    assert cause == CLASS_OF[row.name]
    assert cause in CLASSES
    is_of_steps = "own_compute" in row.raises
    assert node == (HERE if row.scope == "node" and is_of_steps else None)


def test_workers_that_are_all_unlike_are_no_slow_node_after_two_steps() -> None:
    """Each scatters by now as much as it is off: only what it scattered before says so."""
    steps = 0.5 * np.random.default_rng(25).random((2, 64)) ** 3
    steps -= np.median(steps, axis=1)[:, None]
    own, usual_error = steps.mean(axis=0), np.full(64, 0.006)
    sizes = {"wait": (0.43, 0.03), "uneven": (0.12, 0.03), "compute": (0.02, 0.004)}
    sizes |= dict.fromkeys(("transfer", "input", "other"), (0.0, 0.004))
    effects = {name: Effect(*map(np.asarray, each)) for name, each in sizes.items()}
    error = np.hypot(usual_error, scatter_of(steps))
    effects["own_compute"] = Effect(own, error, usual_error)

    found = explain(effects, (int(own.argmax()),), n_nodes=64, n_stages=1)

    assert (found.cause, found.node) == ("seq_imbalance", None)


NO_ROW_PREDICTS: list[tuple[dict[str, float], int | None]] = [
    ({"transfer": -0.2, "compute": 0.2, "input": 0.2}, None),
    ({"wait": 0.3, "compute": 0.3, "transfer": 0.3, "input": 0.3, "other": 0.3}, None),
    ({"other": 0.2}, None),
    ({"wait": -0.2, "uneven": -0.1}, None),
]


def test_a_place_that_no_row_predicts_is_unknown() -> None:
    effects = effects_of({"memory": 0.4, "bytes": 0.5, "wait": -0.3}, place=HERE)
    assert explained(effects)[0] == UNKNOWN


@pytest.mark.parametrize(("sizes", "place"), NO_ROW_PREDICTS)
def test_what_no_row_predicts_is_unknown(sizes: dict[str, float], place: int | None) -> None:
    assert explained(effects_of(sizes, place=place))[0] == UNKNOWN


def test_little_evidence_is_unknown() -> None:
    effects = {"step": Effect(np.asarray(0.2), np.asarray(0.01))}
    assert explained(effects) == (UNKNOWN, None)
    assert explained({}) == (UNKNOWN, None)


@pytest.mark.parametrize("row", [r for r in SIGNATURES if r.scope == "node"], ids=title)
def test_a_node_is_not_accused_of_what_two_show_alike(row: Signature) -> None:
    effects = predicted(row)
    for name in OF_PLACE:
        size = np.array(effects[name].size)
        size[HERE + 1] = size[HERE]
        effects[name] = replace(effects[name], size=size)

    found = explain(effects, (HERE, HERE + 1), n_nodes=N_NODES)

    assert found.node is None
    assert found.cause in (row.name, UNKNOWN, CLASS_OF.get(row.name))


def test_no_node_is_accused_below_its_share_of_the_posterior() -> None:
    accused = []
    for size in np.linspace(0.0, 0.3, 31).tolist():
        every = effects_of({"wait": size, "own_compute": size}, place=HERE)
        effects = {name: every[name] for name in ("wait", "own_compute", "own_input", "compute")}
        found = explain(effects, (HERE, HERE + 1), n_nodes=N_NODES)
        accused.append(found.node is not None)
        if found.node is None:
            assert found.part is None
        else:
            assert found.node == HERE
            assert found.node_weight >= NAMED
        if found.cause not in (UNKNOWN, *CLASSES):
            assert found.weights[found.cause] >= NAMED
    # The evidence grows with the size: from some size on the node is accused.
    assert not accused[0]
    assert accused[-1]
    assert accused == sorted(accused)


def test_a_size_that_steps_share_tells_a_cause_from_a_coincidence() -> None:
    """Others wait for as long as the node is late: not for ten times as long."""
    [row] = [r for r in SIGNATURES if title(r) == "slow_core-node"]
    seen = {"wait": (0.2, ERROR, None), "own_compute": (0.2, ERROR, None)}
    apart = {"wait": (0.2, ERROR, None), "own_compute": (0.02, ERROR, None)}

    assert log_likelihood(row, seen) > log_likelihood(row, apart) + 3.0
    assert log_likelihood(row, seen) > log_likelihood(None, seen) + 1.0


@pytest.mark.parametrize("row", SIGNATURES, ids=title)
def test_effects_of_a_wrong_sign_are_evidence_against_a_row(row: Signature) -> None:
    for name in row.raises | row.lowers:
        right = {name: ((row.sign(name) or 0) * SIZE, ERROR, None)}
        wrong = {name: (-right[name][0], ERROR, None)}
        assert log_likelihood(row, right) > log_likelihood(row, wrong) + 3.0, name
    for name in row.leaves:
        unchanged, changed = {name: (0.0, ERROR, None)}, {name: (SIZE, ERROR, None)}
        assert log_likelihood(row, unchanged) > log_likelihood(row, changed) + 3.0, name


def test_rows_are_consistent() -> None:
    known = set(OF_RUN) | OF_PLACE
    for row in SIGNATURES:
        said = [row.raises, row.lowers, row.leaves]
        assert row.scope in ("run", "node")
        assert row.raises
        assert 0 < row.prior < 1
        assert frozenset.union(*said, row.scatters, row.may) <= known, title(row)
        assert sum(map(len, said)) == len(frozenset.union(*said)), title(row)
        assert row.sign(min(row.raises)) == 1
        assert row.sign("nothing") is None
        assert all(row.sign(name) == 0 for name in row.leaves)
        assert all(row.sign(name) == -1 for name in row.lowers)
    titles = sorted(map(title, SIGNATURES))
    assert all(len(list(each)) == 1 for _, each in groupby(titles))
    assert sum(row.prior for row in SIGNATURES) < 1


def test_the_part_that_is_worse_is_shown_not_its_mates_that_are_better_by_more() -> None:
    """Two cores are compared with their mean: a slow one is as far above it as the other below."""
    effects = effects_of({"wait": SIZE, "own_compute": SIZE, "power": 0.1}, place=HERE)
    size = np.zeros((N_NODES, N_PARTS["core_own"]))
    size[HERE, PART], size[HERE, PART + 1] = 0.17, -0.2
    effects["core_own"] = replace(effects["core_own"], size=size)
    of_memory = at_place({"memory": Effect(-size, np.full_like(size, ERROR))}, HERE)

    found = explain(effects, (HERE,), n_nodes=N_NODES)

    assert (found.cause, found.node, found.part) == ("slow_core", HERE, PART)
    # Memory is worse where it falls; of so many parts the worst is a little lower by chance.
    size_of_memory, error, part = of_memory["memory"]
    assert -0.17 < size_of_memory < -0.15
    assert (error, part) == (ERROR, PART)


def test_the_part_is_that_of_the_quantity_that_shows_it_most_clearly() -> None:
    row = next(r for r in SIGNATURES if r.name == "hbm_slow" and r.scope == "node")
    effects = dict(predicted(row))
    # Cores that wait count as busy: no device stands out by them, but one is a little above.
    device = np.zeros((N_NODES, N_PARTS["device"]))
    device[HERE, 0] = 0.002
    effects["device"] = replace(effects["device"], size=device)

    found = explain(effects, (HERE,), n_nodes=N_NODES)

    assert (found.cause, found.node, found.part) == ("hbm_slow", HERE, PART)
