"""Step times from the Neuron runtime's events, through its C interface."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trnwatch.servers import listening, reporting_to
from trnwatch.runtime_trace import RuntimeLibrary, RuntimeTrace, RuntimeTraceError

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("libnrt.c")
NOON_S = 1_800_000_000.0
EXECUTION, BARRIER, COLLECTIVE, SOFTWARE = range(4)
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compile the runtime that the tests trace, with options; each kind once."""
    built: dict[tuple[str, ...], Path] = {}

    def compiled(*options: str) -> Path:
        if options not in built:
            path = tmp_path_factory.mktemp("runtime") / "libnrt.so.1"
            flags = ("-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libnrt.so.1")
            subprocess.run(["cc", *flags, *options, "-o", str(path), str(SOURCE)], check=True)
            built[options] = path
        return built[options]

    return compiled


class Device:
    """A traced device with a settable clock; times are seconds after noon."""

    def __init__(
        self, path: Path, *, clock_offset_s: float = 0.0, on_request: bool = False
    ) -> None:
        self._library = ctypes.CDLL(str(path))
        self._offset_s = clock_offset_s
        self.now_s = 0.0
        self.read_cost_s = 0.0
        self._spent_s = 0.0
        library = RuntimeLibrary(self._library)
        self.trace = RuntimeTrace(
            lambda: library,
            on_request=on_request,
            clock=lambda: NOON_S + self.now_s,
            timer=self._timer,
            monotonic=lambda: self.now_s,
        )
        self.trace.poll()

    def _timer(self) -> float:
        self._spent_s += self.read_cost_s
        return self._spent_s

    def did(
        self, kind: int, since_s: float, until_s: float, *, core: int = 0, model: int = 1
    ) -> None:
        since, until = (
            ctypes.c_uint64(round((NOON_S + each + self._offset_s) * 1e9))
            for each in (since_s, until_s)
        )
        self._library.device_event(kind, core, since, until, model)

    def poll(self, now_s: float) -> None:
        self.now_s = now_s
        self.trace.poll()

    def step(self, since_s: float, until_s: float) -> dict[str, float]:
        return dict(self.trace.fields_of(NOON_S + since_s, NOON_S + until_s))


@pytest.mark.parametrize("clock_offset_s", [0.0, 4_000_000.0])
def test_a_step_is_split_by_the_events_of_its_cores(build: Build, clock_offset_s: float) -> None:
    device = Device(build(), clock_offset_s=clock_offset_s)
    for core in (0, 1):
        device.did(EXECUTION, 1.0, 1.9, core=core)
        device.did(COLLECTIVE, 1.5, 1.8, core=core)
    device.did(BARRIER, 1.4, 1.6, core=0)
    device.did(SOFTWARE, 1.0, 1.9)
    device.poll(1.9)

    # Core 0 waits for 0.2 s and then transfers for 0.2 s; core 1 transfers for 0.3 s.
    assert device.step(1.0, 1.9) == pytest.approx(
        {"executing_s": 0.9, "barrier_s": 0.1, "collective_trace_s": 0.25}, abs=1e-5
    )


def test_an_event_across_two_steps_counts_in_each_for_its_part(build: Build) -> None:
    device = Device(build())
    device.did(EXECUTION, 0.5, 2.5)
    device.did(COLLECTIVE, 0.9, 1.2)
    device.poll(3.0)

    assert device.step(0.5, 1.0)["collective_trace_s"] == pytest.approx(0.1, abs=1e-5)
    assert device.step(1.0, 2.0)["collective_trace_s"] == pytest.approx(0.2, abs=1e-5)


def test_a_step_that_the_trace_does_not_cover_has_no_split(build: Build) -> None:
    device = Device(build())
    device.did(EXECUTION, 1.0, 2.0)
    device.poll(2.0)

    assert device.step(-0.5, 1.5) == {}
    assert device.step(1.0, 2.5) == {}
    assert device.step(0.1, 0.9) == {}


def test_dropped_events_leave_their_steps_without_a_split(build: Build) -> None:
    device = Device(build())
    for place in range(30_000):
        device.did(EXECUTION, 1 + place * 1e-5, 1 + place * 1e-5 + 5e-6)
    device.poll(2.0)
    assert device.step(1.0, 1.2) == {}
    device.did(EXECUTION, 2.1, 2.9)
    device.poll(3.0)

    assert device.step(2.1, 2.9)["executing_s"] == pytest.approx(0.8, abs=1e-5)


def test_reading_that_costs_too_much_pauses_the_trace(build: Build) -> None:
    device = Device(build())
    device.read_cost_s = 0.5
    device.did(EXECUTION, 0.2, 0.8)
    device.poll(1.0)
    assert device.step(0.2, 0.8)["executing_s"] == pytest.approx(0.6, abs=1e-5)
    device.poll(2.0)
    device.did(EXECUTION, 2.1, 2.9)
    device.poll(3.0)
    assert device.step(2.1, 2.9) == {}
    device.read_cost_s = 0.0
    device.poll(51.0)
    device.did(EXECUTION, 51.1, 51.9)
    device.poll(52.0)

    assert device.step(51.1, 51.9)["executing_s"] == pytest.approx(0.8, abs=1e-5)
    assert device.trace.problem == ""


def test_a_trace_on_request_covers_the_requested_time_only(build: Build) -> None:
    device = Device(build(), on_request=True)
    device.did(EXECUTION, 0.2, 0.8)
    device.poll(1.0)
    assert (device.step(0.2, 0.8), device.trace.state) == ({}, "on request")
    for since_s in (1.0, 20.0):
        # Asked in each response; the last one counts.
        device.trace.request(30.0)
        device.trace.request(5.0)
        device.poll(since_s + 0.1)
        device.did(EXECUTION, since_s + 0.2, since_s + 0.8)
        device.poll(since_s + 1.0)
        step = device.step(since_s + 0.2, since_s + 0.8)
        assert step["executing_s"] == pytest.approx(0.6, abs=1e-5)
        assert device.trace.state == "on request"
        assert not device.trace.has_read(NOON_S + since_s + 2.0)
        device.poll(since_s + 6.0)
        # A step that ends later waits for nothing.
        assert device.trace.has_read(NOON_S + since_s + 7.0)
        device.did(EXECUTION, since_s + 6.2, since_s + 6.8)
        device.poll(since_s + 7.0)
        assert device.step(since_s + 6.2, since_s + 6.8) == {}
        device.now_s = since_s + 19.0


def test_a_requested_trace_without_the_runtime_says_so() -> None:
    trace = RuntimeTrace(lambda: None, on_request=True)
    trace.request(60.0)
    trace.poll()
    assert trace.state == "libnrt.so.1 is not loaded in this process"


@pytest.mark.parametrize(
    ("options", "shows"),
    [
        (("-DTOO_OLD",), "has no nrt_sys_trace_config_allocate"),
        (("-DSTATUS=13",), "nrt_sys_trace_start failed with status 13"),
        (("-DUNKNOWN_JSON",), "unknown fields: what"),
    ],
)
def test_a_runtime_that_cannot_be_traced_is_named(
    build: Build, options: tuple[str, ...], shows: str
) -> None:
    device = Device(build(*options))
    device.did(EXECUTION, 0.1, 0.2)
    device.poll(1.0)

    assert shows in device.trace.problem
    assert device.trace.state == device.trace.problem
    assert device.step(0.1, 0.2) == {}


def test_a_process_without_the_runtime_waits_for_it() -> None:
    trace = RuntimeTrace(lambda: RuntimeLibrary.loaded("libnrt-not-installed.so.7"))
    trace.poll()

    assert trace.problem == ""
    assert "not loaded" in trace.state


def test_text_that_is_not_json_is_an_error(build: Build) -> None:
    class Garbled(RuntimeLibrary):
        def fetch(self) -> bytes:
            return b"\xff{"

    trace = RuntimeTrace(lambda: Garbled(ctypes.CDLL(str(build()))))
    trace.poll()
    trace.poll()

    assert "not JSON" in trace.problem


def test_fetching_while_stopped_is_an_error(build: Build) -> None:
    library = RuntimeLibrary(ctypes.CDLL(str(build())))
    library.start()
    library.stop()

    with pytest.raises(RuntimeTraceError, match="fetch_events failed with status 1"):
        library.fetch()


TRAINING = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1])
from trnwatch import Reporter
def did(kind, since, until):
    start, stop = (ctypes.c_uint64(round(each * 1e9)) for each in (since, until))
    runtime.device_event(kind, 0, start, stop, 1)
with Reporter.from_env() as reporter:
    time.sleep(1.5)
    for _ in range(5):
        with reporter.step():
            since = time.time()
            time.sleep(0.5)
            did(0, since, since + 0.48)
            did(1, since + 0.3, since + 0.4)
            did(2, since + 0.4, since + 0.45)
    time.sleep(2.5)
"""


def run_training(
    script: str, build: Build, *arguments: str, mode: str = "1", trace_s: float | None = None
) -> list[dict[str, object]]:
    """Run a script in a training process of its own; return the lines that it reported.

    ``mode`` is TRNWATCH_RUNTIME_TRACE; the server asks for a trace of ``trace_s``.
    """
    with listening() as listener:
        if trace_s is not None:
            listener.answer["trace_s"] = trace_s
        env = os.environ | {
            **reporting_to(listener.url),
            "TRNWATCH_RUN": "traced",
            "TRNWATCH_NODE": "trn-a",
            "TRNWATCH_RUNTIME_TRACE": mode,
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run([sys.executable, *arguments, script, str(build())], env=env, check=True)
        return listener.lines


def test_a_training_process_is_traced_only_if_it_allows_it_and_the_server_asks(
    build: Build,
) -> None:
    def n_traced(mode: str, trace_s: float | None) -> int:
        lines = run_training(TRAINING, build, "-c", mode=mode, trace_s=trace_s)
        assert sum(line["kind"] == "step" for line in lines) == 5
        return sum("barrier_s" in line for line in lines)

    assert n_traced("request", None) == 0
    assert n_traced("0", 60) == 0
    assert n_traced("request", 60) > 0


def test_a_training_process_reports_its_traced_steps(build: Build) -> None:
    lines = run_training(TRAINING, build, "-c")
    steps = [line for line in lines if line["kind"] == "step"]
    beats = [line for line in lines if line["kind"] == "beat"]

    assert len(steps) == 5
    assert beats[0]["runtime_trace"]
    traced = [step for step in steps if "barrier_s" in step]
    assert traced
    for step in traced:
        assert step["barrier_s"] == pytest.approx(0.1, abs=0.01)
        assert step["collective_trace_s"] == pytest.approx(0.05, abs=0.01)


# Four forward and backward passes and the optimizer make one step; an evaluation comes between.
SCRIPT = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1])
time.sleep(1.5)
since = time.time() - 30
for step in range(12):
    if step == 6:
        runtime.device_event(0, 0, *(ctypes.c_uint64(round((since + e) * 1e9)) for e in (0, 1)), 9)
        since += 1
    for place, model in enumerate((1, 1, 1, 1, 2)):
        start, stop = (ctypes.c_uint64(round((since + each) * 1e9)) for each in (0, 0.4))
        runtime.device_event(0, 0, start, stop, model)
        since += 0.4
time.sleep(2.5)
"""


def test_an_unchanged_script_reports_the_steps_that_the_trace_shows(
    build: Build, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    lines = run_training(str(script), build, "-m", "trnwatch")
    steps = [line for line in lines if line["kind"] == "step"]

    # The last step has no end yet; the step before the evaluation ends with it.
    assert [step["step"] for step in steps] == list(range(1, 12))
    assert [step["step_s"] for step in steps] == pytest.approx([2.0] * 5 + [2.0] + [2.0] * 5)
    assert lines[-1]["kind"] == "end"
