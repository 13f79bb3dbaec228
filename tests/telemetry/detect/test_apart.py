"""The one part that is unlike the others, however many there are."""

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.parts import CORES, MEMORY, PeerRule, compare_parts, ratio_history


def span_of(values: FloatArray, kind: PeerRule = CORES) -> Span:
    nodes = tuple(f"n{i}" for i in range(values.shape[1]))
    return Span("s", np.arange(len(values)), nodes, {kind.metric: values})


def healthy(n_nodes: int, n_parts: int, *, level: float = 0.7, seed: int = 3) -> FloatArray:
    rng = np.random.default_rng(seed)
    lasting = 1 + 0.006 * rng.standard_normal((n_nodes, n_parts))
    return level * lasting * (1 + 0.01 * rng.standard_normal((8, n_nodes, n_parts)))


def test_one_slow_core_in_thousands_is_the_only_suspect() -> None:
    values = healthy(64, 64)
    values[:, 17] /= 1.08
    values[:, 17, 40] *= 1.08
    seen = compare_parts(span_of(values), CORES)
    assert seen is not None
    assert np.argwhere(seen.suspects).tolist() == [[17, 40]]


def test_thousands_of_healthy_cores_have_no_suspect() -> None:
    for seed in range(20):
        seen = compare_parts(span_of(healthy(64, 64, seed=seed)), CORES)
        assert seen is not None
        assert not seen.suspects.any()


def test_what_is_so_on_all_nodes_is_a_role() -> None:
    values = healthy(8, 32)
    values[:, :, 5] *= 1.3
    seen = compare_parts(span_of(values), CORES)
    assert seen is not None
    assert not seen.suspects.any()


def test_a_late_node_that_works_alone_is_compared_with_itself() -> None:
    values = healthy(8, 32)
    values[:, [i for i in range(8) if i != 2]] = 0.01
    values[:, 2, 9] *= 1.4
    seen = compare_parts(span_of(values), CORES)
    assert seen is not None
    assert np.argwhere(seen.suspects).tolist() == [[2, 9]]


def test_a_node_that_does_not_work_is_not_judged() -> None:
    values = healthy(4, 32, level=0.02)
    values[:, 1, 3] *= 2
    seen = compare_parts(span_of(values), CORES)
    assert seen is not None
    assert not seen.suspects.any()
    assert np.isnan(ratio_history(seen.span, CORES)[:, 1]).all()


def test_a_memory_that_moves_less_stands_away_upwards() -> None:
    values = healthy(8, 16, level=4e11)
    values[:, 3, 7] *= 0.5
    seen = compare_parts(span_of(values, MEMORY), MEMORY)
    assert seen is not None
    assert np.argwhere(seen.suspects).tolist() == [[3, 7]]
    assert 1.9 < seen.ratio[3, 7] < 2.1


def test_a_metric_that_no_node_has_is_no_evidence() -> None:
    assert compare_parts(span_of(np.zeros((8, 4, 0))), CORES) is None
    assert compare_parts(Span("s", np.arange(8), ("n0",), {}), CORES) is None


def test_silence_is_no_evidence() -> None:
    seen = compare_parts(span_of(np.full((8, 4, 32), np.nan)), CORES)
    assert seen is not None
    assert not seen.suspects.any()


def test_suspects_are_those_above_the_limit_of_their_node() -> None:
    for excess in (0.0, 0.03, 0.05, 0.06, 0.08, 0.2):
        values = healthy(16, 32)
        values[:, 4, 7] *= 1 + excess
        seen = compare_parts(span_of(values), CORES)
        assert seen is not None
        literal = seen.ratio - 1.0 >= seen.least[:, None]
        np.testing.assert_array_equal(seen.suspects, literal)
