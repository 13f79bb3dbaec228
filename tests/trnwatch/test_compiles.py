"""Compiler wrapper log lines of a training process, sent to the server."""

import logging
import time
from collections.abc import Iterator

import pytest

from tests.trnwatch.servers import Listener, listening, until
from trnwatch import Reporter
from trnwatch.compiles import CompileLines, compile_record, toolchain

ENV = {"TRNWATCH_RUN": "real", "TRNWATCH_NODE": "trn-a", "TRNWATCH_SESSION": "1"}
ROOT = "/fsx/cache/neuronxcc-2.21.18209.0+043b1bf7/MODULE_10125322468834846398+abb26765"
CALL = (
    "Call compiler with cmd: neuronx-cc compile --framework=XLA /tmp/x/MODULE_7+a.hlo_module.pb "
    "--output /tmp/x/MODULE_7+a.neff --target=trn1 -O1"
)
DONE = "Compilation Successfully Completed for model.MODULE_7+a.hlo_module.pb"


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as each:
        yield each


def test_a_hit_reports_its_module_its_cache_and_the_compiler() -> None:
    (hit,) = CompileLines().read(f"Using a cached neff at {ROOT}/model.neff", 5.0)

    assert (hit["outcome"], hit["at"]) == ("hit", 5.0)
    assert hit["module"] == "MODULE_10125322468834846398+abb26765"
    assert (hit["cache"], hit["compiler"]) == ("/fsx/cache", "2.21.18209.0+043b1bf7")


def test_a_compile_lasts_from_its_call_to_its_end() -> None:
    lines = CompileLines()
    lines.read("Compile cache path: s3://bucket/cache", 0.0)

    assert lines.read(CALL, 100.0) == []
    (miss,) = lines.read(DONE, 160.0)
    assert (miss["outcome"], miss["at"], miss["seconds"]) == ("miss", 100.0, 60.0)
    assert miss["flags"] == "--framework=XLA --target=trn1 -O1"
    assert miss["cache"] == "s3://bucket/cache"


def test_a_compile_that_passed_is_over_when_the_next_begins() -> None:
    lines = CompileLines()
    lines.read(CALL, 100.0)
    lines.read("Compiler status PASS", 130.0)
    (miss,) = lines.read(CALL.replace("MODULE_7", "MODULE_8"), 200.0)

    assert (miss["module"], miss["seconds"]) == ("MODULE_7+a", 30.0)


@pytest.mark.parametrize(
    "line", ["Compiler status ERROR", "Compilation failed for MODULE_7+a after 1 retries"]
)
def test_a_compile_may_fail(line: str) -> None:
    lines = CompileLines()
    lines.read(CALL, 100.0)
    (failed,) = lines.read(line, 107.0)

    assert (failed["outcome"], failed["seconds"]) == ("fail", 7.0)


def test_what_else_the_wrapper_states_is_no_compile() -> None:
    assert CompileLines().read("Current remaining items are 5, locked are 0", 1.0) == []


@pytest.mark.parametrize("name", ["NEURON_CC_WRAPPER", "NCC_WRAPPER"])
def test_a_reporter_hears_what_the_wrapper_logs(listener: Listener, name: str) -> None:
    log = logging.getLogger(name)
    log.setLevel(logging.INFO)
    with Reporter(listener.url, token="secret", env=ENV):
        log.info("Using a cached neff at %s/model.neff", ROOT)
        until(lambda: bool(_compiles(listener)))
    log.info("Using a cached neff at %s/model.neff", ROOT)
    (reported,) = _compiles(listener)

    assert (reported["run"], reported["worker"], reported["outcome"]) == ("real", "trn-a", "hit")
    assert reported["at"] == pytest.approx(time.time(), abs=60)


def test_a_job_may_say_itself_what_it_compiled_and_that_it_meant_to(listener: Listener) -> None:
    with Reporter(listener.url, token="secret", env=ENV) as reporter:
        reporter.compile("MODULE_7+a", seconds=90.0, at=1000.0, shape="8x4096", planned=True)
        reporter.compile("MODULE_8+a", "hit", seconds=3.0, at=1100.0)
        until(lambda: len(_compiles(listener)) == 2)
    miss, hit = _compiles(listener)

    assert (miss["outcome"], miss["seconds"], miss["at"]) == ("miss", 90.0, 1000.0)
    assert (miss["shape"], miss["planned"]) == ("8x4096", True)
    assert "seconds" not in hit


def test_what_is_no_compile_is_reported_once_and_hurts_no_one(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    with Reporter(listener.url, token="secret", env=ENV) as reporter:
        reporter.compile("MODULE_7+a", "perhaps")
        reporter.compile("MODULE_7+a", colour="blue")

    assert _compiles(listener) == []
    with pytest.raises(ValueError, match="colour"):
        compile_record("", "miss", {"colour": "blue"}, now_s=0.0)


def test_without_a_beginning_a_compile_began_when_it_took_as_long() -> None:
    assert compile_record("m", "miss", {"seconds": 40.0}, now_s=100.0)["at"] == 60.0


def test_flags_that_only_steer_the_cache_are_no_part_of_the_key() -> None:
    env = {"NEURON_CC_FLAGS": "--cache_dir=/fsx/c -O1  --no_cache --model-type=transformer"}

    assert toolchain(env)["compiler_flags"] == "-O1 --model-type=transformer"


def test_a_run_states_its_flags_from_the_environment(listener: Listener) -> None:
    env = ENV | {"NEURON_CC_FLAGS": "-O2", "TRNWATCH_SDK_VERSION": "2.26.1"}
    with Reporter(listener.url, token="secret", env=env):
        until(lambda: bool(listener.lines))
    run = listener.lines[0]

    assert (run["compiler_flags"], run["sdk_version"]) == ("-O2", "2.26.1")


def _compiles(listener: Listener) -> list[dict[str, object]]:
    return [line for line in listener.lines if line["kind"] == "compile"]
