"""Step times from NCCL Inspector's records."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.trnwatch.inspector import NOON_US, Inspector
from tests.trnwatch.servers import listening, reporting_to
from trnwatch.nccl_inspector import (
    INTERVAL,
    InspectorEvents,
    InspectorFile,
    inspector_trace,
    is_model_parallel,
)
from trnwatch.runtime_trace import RuntimeTrace

ROOT = Path(__file__).parents[2]
NOON_S = NOON_US / 1e6
INTERVAL_S = 0.5


class Rank:
    """A process whose records are read at settable moments; times are seconds after noon."""

    def __init__(self, path: Path) -> None:
        self.now_s = 0.0
        self.trace = RuntimeTrace(
            lambda: InspectorFile.found(str(path)),
            events=InspectorEvents(INTERVAL_S),
            absent="nothing is written",
            clock=lambda: NOON_S + self.now_s,
            timer=lambda: 0.0,
        )
        self.poll(0.0)

    def poll(self, now_s: float) -> None:
        self.now_s = now_s
        self.trace.poll()

    def step(self, since_s: float, until_s: float) -> dict[str, float]:
        return dict(self.trace.fields_of(NOON_S + since_s, NOON_S + until_s))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dump" / "gpu-a-pid7.log"


@pytest.fixture
def inspector(path: Path) -> Iterator[Inspector]:
    with closing(Inspector(path)) as inspector:
        yield inspector


@pytest.fixture
def rank(path: Path, inspector: Inspector) -> Iterator[Rank]:
    rank = Rank(path)
    yield rank
    rank.trace.stop()


@pytest.mark.parametrize("version", ["v4.2", "v4.3"])
def test_a_step_is_split_by_the_operations_of_its_process(
    inspector: Inspector, rank: Rank, version: str
) -> None:
    inspector.version = version
    inspector.did("AllReduce", 1.2, 1.4)
    inspector.did("ReduceScatter", 1.3, 1.5)
    rank.poll(3.0)

    # Operations that run at the same time count once.
    assert rank.step(1.0, 1.9) == pytest.approx({"barrier_s": 0.0, "collective_trace_s": 0.3})
    assert rank.trace.state == "on: NCCL Inspector"


@pytest.mark.parametrize(
    ("operation", "communicator"),
    [
        ("AlltoAll", "EXPERT_MODEL_PARALLEL_GROUP"),
        ("AlltoAll", "default_pg"),
        ("Send", "PIPELINE_MODEL_PARALLEL_GROUP"),
        ("Recv", ""),
        ("AllReduce", "mesh_tp"),
        ("AllGather", "TENSOR_MODEL_PARALLEL_GROUP"),
    ],
)
def test_operations_that_exchange_no_gradients_are_other_communication(
    inspector: Inspector, rank: Rank, operation: str, communicator: str
) -> None:
    inspector.did("AllReduce", 1.0, 1.2)
    inspector.did(operation, 1.3, 1.7, communicator=communicator)
    rank.poll(3.0)

    assert rank.step(1.0, 1.9) == pytest.approx(
        {"barrier_s": 0.0, "collective_trace_s": 0.2, "other_comm_s": 0.4}
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DATA_PARALLEL_GROUP_WITH_CP", False),
        ("EXPERT_DATA_PARALLEL_GROUP", False),
        ("mesh_fsdp", False),
        ("default_pg", False),
        ("CONTEXT_PARALLEL_GROUP", True),
        ("pp", True),
        ("unknown", False),
    ],
)
def test_a_communicator_is_classified_by_the_words_of_its_name(
    name: str,
    expected: bool,  # noqa: FBT001
) -> None:
    assert is_model_parallel({"comm_name": name}) is expected


def test_a_step_is_held_until_its_records_are_written(inspector: Inspector, rank: Rank) -> None:
    rank.poll(1.0)
    assert not rank.trace.has_read(NOON_S + 1.9)
    inspector.did("AllReduce", 1.2, 1.4)
    rank.poll(2.8)
    assert not rank.trace.has_read(NOON_S + 1.9)
    rank.poll(3.0)

    assert rank.trace.has_read(NOON_S + 1.9)
    assert rank.step(1.0, 1.9)["collective_trace_s"] == pytest.approx(0.2)


def test_a_half_written_line_is_read_when_it_is_whole(
    path: Path, inspector: Inspector, rank: Rank
) -> None:
    inspector.did("AllReduce", 1.2, 1.4)
    content = path.read_bytes()
    inspector.truncate()
    inspector.append(content[:-30])
    rank.poll(2.0)
    inspector.append(content[-30:])
    rank.poll(3.0)

    assert rank.step(1.0, 1.9)["collective_trace_s"] == pytest.approx(0.2)


def test_a_rotated_file_is_followed_and_what_it_may_have_lost_is_unknown(
    inspector: Inspector, rank: Rank
) -> None:
    inspector.did("AllReduce", 1.2, 1.4)
    rank.poll(3.0)
    inspector.did("AllReduce", 3.2, 3.4)
    inspector.replace()
    rank.poll(5.0)
    inspector.did("AllReduce", 5.2, 5.4)
    rank.poll(7.0)
    assert rank.step(1.0, 1.9)
    assert rank.step(3.0, 3.9) == {}
    assert rank.step(5.0, 5.9)["collective_trace_s"] == pytest.approx(0.2)

    inspector.truncate()
    rank.poll(9.0)
    inspector.did("AllReduce", 9.2, 9.4)
    rank.poll(11.0)
    assert rank.step(7.0, 7.9) == {}
    assert rank.step(9.0, 9.9)["collective_trace_s"] == pytest.approx(0.2)
    assert rank.trace.problem == ""


def test_a_removed_file_is_read_on(path: Path, inspector: Inspector, rank: Rank) -> None:
    path.unlink()
    inspector.did("AllReduce", 1.2, 1.4)
    rank.poll(3.0)

    assert rank.step(1.0, 1.9)["collective_trace_s"] == pytest.approx(0.2)


@pytest.mark.parametrize("lost", [b"\xff{\n", b'{"what": 1}\n', b'["coll_perf"]\n'])
def test_a_line_that_cannot_be_read_leaves_its_steps_without_a_split(
    inspector: Inspector, rank: Rank, lost: bytes
) -> None:
    inspector.did("AllReduce", 1.2, 1.4)
    inspector.append(lost)
    rank.poll(3.0)
    inspector.did("AllReduce", 3.2, 3.4)
    rank.poll(5.0)

    assert rank.step(1.0, 1.9) == {}
    assert rank.step(3.0, 3.9)["collective_trace_s"] == pytest.approx(0.2)


def test_dropped_records_leave_their_steps_without_a_split(
    inspector: Inspector, rank: Rank
) -> None:
    inspector.did("AllReduce", 1.2, 1.4, dropped=3)
    rank.poll(3.0)

    assert rank.step(1.0, 1.9) == {}


def test_a_step_without_operations_has_no_split(inspector: Inspector, rank: Rank) -> None:
    inspector.did("AllReduce", 1.2, 1.4)
    rank.poll(5.0)

    assert rank.step(2.0, 3.0) == {}


def test_unknown_records_end_the_trace_and_are_named(inspector: Inspector, rank: Rank) -> None:
    inspector.write({"what": 1, "when": 2})
    rank.poll(3.0)

    assert rank.trace.state == "NCCL Inspector's records have unknown fields: what, when"


def test_records_without_times_name_the_setting_that_adds_them(
    inspector: Inspector, rank: Rank
) -> None:
    inspector.is_verbose = False
    inspector.did("AllReduce", 1.2, 1.4)
    rank.poll(3.0)

    assert "set NCCL_INSPECTOR_DUMP_VERBOSE=1" in rank.trace.state


def test_a_missing_folder_is_waited_for(path: Path) -> None:
    rank = Rank(path)
    assert (rank.trace.state, rank.trace.problem) == ("nothing is written", "")
    with closing(Inspector(path)) as inspector:
        rank.poll(0.5)
        inspector.did("AllReduce", 1.2, 1.4)
        rank.poll(3.0)
        assert rank.step(1.0, 1.9)["collective_trace_s"] == pytest.approx(0.2)
    rank.trace.stop()


@pytest.mark.parametrize("interval", [{}, {INTERVAL: "-1"}, {INTERVAL: "30000000"}])
def test_records_that_come_too_late_name_the_setting(interval: dict[str, str]) -> None:
    assert inspector_trace(interval).state.startswith(f"{INTERVAL} must be 0 to 10000000")


TRAINING = """
import os, socket, time
from pathlib import Path
from tests.trnwatch.inspector import Inspector
from trnwatch import Reporter
path = Path(os.environ["NCCL_INSPECTOR_DUMP_DIR"]) / f"{socket.gethostname()}-pid{os.getpid()}.log"
inspector = Inspector(path)
def did(operation, since, until):
    inspector.did(operation, since, until, origin_us=0)
with Reporter.from_env() as reporter:
    time.sleep(1.5)
    for _ in range(5):
        with reporter.step():
            since = time.time()
            time.sleep(0.5)
            did("AllReduce", since + 0.3, since + 0.45)
            did("AlltoAll", since + 0.1, since + 0.2)
    time.sleep(3.5)
"""

# Two buckets of gradients and one of parameters make one step.
SCRIPT = """
import os, socket, time
from pathlib import Path
from tests.trnwatch.inspector import Inspector
path = Path(os.environ["NCCL_INSPECTOR_DUMP_DIR"]) / f"{socket.gethostname()}-pid{os.getpid()}.log"
inspector = Inspector(path)
time.sleep(1.5)
since = time.time() - 40
for step in range(15):
    for operation in ("ReduceScatter", "ReduceScatter", "AllGather"):
        inspector.did(operation, since + 0.2, since + 0.4, origin_us=0)
        since += 0.5
time.sleep(2.5)
"""


def run_training(tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    """Run a script in a training process of its own; return the lines that it reported."""
    with listening() as listener:
        env = os.environ | {
            **reporting_to(listener.url),
            "TRNWATCH_RUN": "traced",
            "TRNWATCH_NODE": "gpu-a",
            "TRNWATCH_RUNTIME_TRACE": "1",
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_DIR": str(tmp_path / "dump"),
            INTERVAL: "100000",
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run([sys.executable, *arguments], env=env, check=True)
        return listener.lines


def test_a_training_process_reports_what_the_inspector_recorded(tmp_path: Path) -> None:
    lines = run_training(tmp_path, "-c", TRAINING)
    steps = [line for line in lines if line["kind"] == "step"]

    assert len(steps) == 5
    traced = [step for step in steps if "collective_trace_s" in step]
    assert traced
    for step in traced:
        assert step["collective_trace_s"] == pytest.approx(0.15, abs=0.001)
    assert traced[-1]["other_comm_s"] == pytest.approx(0.1, abs=0.001)


def test_an_unchanged_script_reports_the_steps_that_the_records_show(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    lines = run_training(tmp_path, "-m", "trnwatch", str(script))
    steps = [line for line in lines if line["kind"] == "step"]

    assert len(steps) >= 12
    assert [step["step_s"] for step in steps] == pytest.approx([1.5] * len(steps))
