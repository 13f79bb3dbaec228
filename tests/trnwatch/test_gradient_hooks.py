"""Gradient exchanges timed by the reporter in every Nth step."""

import sys
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.trnwatch.servers import Listener, listening, until
from trnwatch import Reporter

ENV = {
    "TRNWATCH_RUN": "sampled",
    "TRNWATCH_NODE": "trn-a",
    "TRNWATCH_SESSION": "1",
    "TRNWATCH_COLLECTIVE_EVERY": "3",
}


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as each:
        yield each


class Library:
    """Stand-ins for the modules of torch_xla and neuronx_distributed, which need a chip."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.grads = ModuleType("neuronx_distributed.parallel_layers.grads")
        self.xla = ModuleType("torch_xla.core.xla_model")
        self.grads.bucket_allreduce_gradients = self._exchange  # type: ignore[attr-defined]
        self.xla.reduce_gradients = self._reduce  # type: ignore[attr-defined]
        self.xla.mark_step = lambda: self.calls.append("mark")  # type: ignore[attr-defined]
        self.xla.wait_device_ops = lambda: self.calls.append("wait")  # type: ignore[attr-defined]
        for module in (self.grads, self.xla):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def _exchange(self, gradients: list[int]) -> int:
        self.calls.append("exchange")
        self.xla.reduce_gradients()
        return len(gradients)

    def _reduce(self) -> None:
        self.calls.append("reduce")
        time.sleep(0.02)


def test_every_third_step_times_its_exchange(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(monkeypatch)
    with Reporter(listener.url, token="secret", env=ENV) as reporter:
        for _ in range(7):
            with reporter.step():
                assert library.grads.bucket_allreduce_gradients([1, 2]) == 2
    until(lambda: len(listener.steps()) == 7)
    timed = {
        line["step"]: line["collective_s"]
        for line in listener.lines
        if line["kind"] == "step" and "collective_s" in line
    }

    assert list(timed) == [3, 6]
    assert all(len(seconds) == 1 and seconds[0] >= 0.02 for seconds in timed.values())
    assert library.calls == [
        *["exchange", "reduce"] * 2,
        *["mark", "wait", "exchange", "reduce", "mark", "wait"],
        *["exchange", "reduce"] * 2,
        *["mark", "wait", "exchange", "reduce", "mark", "wait"],
        *["exchange", "reduce"],
    ]


def test_an_exchange_outside_of_steps_is_left_alone(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(monkeypatch)
    env = ENV | {"TRNWATCH_COLLECTIVE_EVERY": "1"}
    reporter = Reporter(listener.url, token="secret", env=env)
    library.grads.bucket_allreduce_gradients([1])
    reporter.finish()

    assert library.calls == ["exchange", "reduce"]


def test_an_exchange_that_fails_fails_as_before(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(monkeypatch)

    def fail() -> None:
        raise KeyError("link")

    library.xla.reduce_gradients = fail  # type: ignore[attr-defined]
    env = ENV | {"TRNWATCH_COLLECTIVE_EVERY": "1"}
    with (
        Reporter(listener.url, token="secret", env=env) as reporter,
        pytest.raises(KeyError),
        reporter.step(),
    ):
        library.grads.bucket_allreduce_gradients([1])


@pytest.mark.parametrize("text", ["", "0", "often", "-3"])
def test_without_a_valid_number_nothing_is_wrapped(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    library = Library(monkeypatch)
    before = library.grads.bucket_allreduce_gradients
    env = ENV | {"TRNWATCH_COLLECTIVE_EVERY": text}
    with Reporter(listener.url, token="secret", env=env) as reporter, reporter.step():
        assert library.grads.bucket_allreduce_gradients == before
