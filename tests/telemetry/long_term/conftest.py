"""Real long-term stores, one of each kind per module."""

from collections.abc import Iterator

import pytest

from tests.long_term_stores import LongTermStore, prometheus, victoria_metrics


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("victoria", marks=pytest.mark.victoria),
        pytest.param("prometheus", marks=pytest.mark.prometheus),
    ],
)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LongTermStore]:
    """Run VictoriaMetrics, then Prometheus."""
    run = {"victoria": victoria_metrics, "prometheus": prometheus}[request.param]
    with run(tmp_path_factory.mktemp(request.param)) as running:
        yield running
