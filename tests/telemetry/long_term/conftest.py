"""Real long-term stores of each kind, filled with a past."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.long_term_stores import LongTermStore, Past, prometheus, victoria_metrics

StoreOf = Callable[[Past], LongTermStore]


@pytest.fixture(
    params=[
        pytest.param(victoria_metrics, id="victoria", marks=pytest.mark.victoria),
        pytest.param(prometheus, id="prometheus", marks=pytest.mark.prometheus),
    ]
)
def store_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreOf]:
    """Give a function that runs VictoriaMetrics, then Prometheus, with a past."""
    with ExitStack() as stack:
        yield lambda past: stack.enter_context(request.param(tmp_path, past))
