"""`manage.py ingest_neuron_monitor`: recordings, live streams, invalid input."""

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from fleet.models import Node
from telemetry.store.hot import HotStore, open_store
from tests.telemetry.ingest.reports import DATA, SAMPLES, cores, encoded, lines, report

pytestmark = pytest.mark.django_db
TRN2 = str(DATA / "trn2.48xlarge.ndjson")


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    return open_store(redis_url)


def ingest(*arguments: str) -> tuple[dict[str, Any], str]:
    """Run the command; return what it prints as JSON, and what it complains of."""
    out, err = io.StringIO(), io.StringIO()
    call_command("ingest_neuron_monitor", *arguments, "--json", stdout=out, stderr=err)
    return json.loads(out.getvalue()), err.getvalue()


def seconds_of(hot: HotStore, node: str) -> list[int]:
    now = int(time.time())
    span = hot.window(f"node:{node}", ("vcpu_usage_ratio",), start=now - 890, end=now + 5)
    seen = np.isfinite(span.values["vcpu_usage_ratio"][:, 0, 0])
    return [int(tick) for tick in span.ticks[seen]]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Give a function that makes stdin a pipe, into which pieces are written with pauses."""
    reading, writing = os.pipe()
    threads = []

    def say(*pieces: bytes, pause_s: float = 0.0) -> None:
        def write() -> None:
            with os.fdopen(writing, "wb", buffering=0) as pipe:
                for piece in pieces:
                    pipe.write(piece)
                    time.sleep(pause_s)

        threads.append(threading.Thread(target=write))
        threads[-1].start()

    with os.fdopen(reading) as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield say
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_recorded_stream_becomes_a_node(hot: HotStore, sample: str) -> None:
    shown, complaints = ingest("--node", "real", str(DATA / f"{sample}.ndjson"))

    n_lines = len(lines(sample))
    assert (shown["node"], shown["accepted"], shown["refused"]) == ("real", n_lines, [])
    assert complaints == ""
    assert Node.objects.get().source == Node.Source.NEURON_MONITOR
    seen = seconds_of(hot, "real")
    assert len(seen) == n_lines
    assert abs(seen[-1] - time.time()) < 3


def test_without_a_name_it_is_the_instance(hot: HotStore) -> None:
    assert ingest(TRN2)[0]["node"] == "i-0000002079071820"


def test_a_recording_may_be_laid_where_it_belongs(hot: HotStore) -> None:
    start = int(time.time()) - 300

    ingest("--node", "real", "--start", str(start), str(DATA / "trn1.2xlarge.ndjson"))

    assert seconds_of(hot, "real") == [start + 1, start + 2, start + 3, start + 4, start + 5]


def test_a_slow_recording_leaves_no_gaps(hot: HotStore, tmp_path: Path) -> None:
    slow = report("trn1.2xlarge")
    for group in slow["system_data"].values():
        group["period"] = 5.0
    path = tmp_path / "slow.ndjson"
    path.write_bytes(b"\n".join([encoded(slow)] * 4))

    ingest("--node", "real", str(path))

    seen = seconds_of(hot, "real")
    assert seen == list(range(seen[0], seen[0] + 20))


def test_a_long_recording_is_stored_in_pieces(hot: HotStore, tmp_path: Path) -> None:
    path = tmp_path / "long.ndjson"
    path.write_bytes(b"\n".join([lines("trn1.2xlarge")[0]] * 1300))

    shown, complaints = ingest("--node", "real", str(path))

    assert shown["accepted"] in {899, 900}
    assert shown["late"] == shown["n_refused"] == 1300 - shown["accepted"]
    assert complaints.startswith("line 1: at: 1299 s old; only the last 900 s are kept")
    assert complaints.count("\n") == 4
    assert f"and {shown['n_refused'] - 3:,} more" in complaints
    assert len(seconds_of(hot, "real")) >= 885


def test_a_bad_line_is_named_and_the_good_ones_around_it_are_kept(
    hot: HotStore, tmp_path: Path
) -> None:
    bent = report()
    cores(bent)["37"]["neuroncore_utilization"] = -3
    path = tmp_path / "mixed.ndjson"
    path.write_bytes(
        b"\n".join([lines("trn2.48xlarge")[0], b"nonsense", encoded(bent), b"", b"[]"])
    )

    shown, complaints = ingest("--node", "real", str(path))

    assert (shown["accepted"], [r["line"] for r in shown["refused"]]) == (1, [2, 3, 5])
    assert "line 2: is not a JSON object on one line. `jq -c .`" in complaints
    assert "neuroncores_in_use.37.neuroncore_utilization: Expected `float` >= 0" in complaints


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_capture_over_several_lines_is_read(hot: HotStore, tmp_path: Path, ending: str) -> None:
    path = tmp_path / "pretty.json"
    printed = [json.dumps(json.loads(line), indent=2) for line in lines("trn2.48xlarge")]
    path.write_bytes(("\n".join(printed) + "\n").replace("\n", ending).encode())

    shown, complaints = ingest("--node", "real", str(path))

    assert (shown["accepted"], shown["n_refused"], complaints) == (3, 0, "")


def test_of_an_array_over_several_lines_three_lines_are_refused_by_name(
    hot: HotStore, tmp_path: Path
) -> None:
    path = tmp_path / "array.json"
    reports = [json.loads(line) for line in lines("trn2.48xlarge")]
    path.write_text(json.dumps(reports, indent=2))
    out, err = io.StringIO(), io.StringIO()

    with pytest.raises(CommandError) as refused:
        call_command("ingest_neuron_monitor", "--node=real", str(path), stdout=out, stderr=err)

    assert refused.value.returncode == 2
    assert [line[:9] for line in err.getvalue().splitlines()] == [
        "line 1: i",
        "line 2: i",
        "line 3: i",
        "and 4,613",
    ]
    assert err.getvalue().count("jq -c") == 3


def test_stdin_is_read_as_it_comes(hot: HotStore, stdin: Callable[..., None]) -> None:
    seen_while_open: list[int] = []
    shown = lines("trn1.2xlarge")

    def watch() -> None:
        time.sleep(0.8)
        seen_while_open.append(len(seconds_of(hot, "real")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    stdin(shown[0] + b"\n", shown[1] + b"\n", pause_s=1.2)
    result, _ = ingest("--node", "real", "-")
    watcher.join()

    assert seen_while_open == [1]
    assert result["accepted"] == 2


def test_what_comes_all_at_once_is_laid_end_to_end(
    hot: HotStore, stdin: Callable[..., None]
) -> None:
    stdin((DATA / "trn1.32xlarge.ndjson").read_bytes())

    assert ingest("--node", "real")[0]["accepted"] == 5
    assert len(seconds_of(hot, "real")) == 5


def bad(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as error:
        ingest(*arguments)
    return error.value


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--node", "a b", TRN2), "--node"),
        (("--node", "../x", TRN2), "--node"),
        (("--node", "", TRN2), "--node"),
        (("/nowhere.ndjson",), "FILE"),
        (("/",), "FILE"),
        (("--start", "5", "-"), "--start"),
        (("--start", "nan", TRN2), "--start"),
        ((__file__,), "FILE"),
    ],
)
def test_what_makes_no_sense_ends_with_two(
    hot: HotStore, arguments: tuple[str, ...], field: str
) -> None:
    error = bad(*arguments)

    assert error.returncode == 2
    assert str(error).startswith(field)
    assert not Node.objects.exists()
    assert hot.shards() == ()


def test_nothing_at_all_ends_with_two(hot: HotStore, stdin: Callable[..., None]) -> None:
    stdin(b"")

    assert bad().returncode == 2


def test_the_name_of_a_simulated_node_is_reserved(hot: HotStore, steady: Node) -> None:
    assert bad("--node", "steady", TRN2).returncode == 2
    assert hot.shards() == ()


def test_without_redis_it_states_what_is_lost(settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    error = bad("--node", "real", TRN2)

    assert error.returncode == 1
    assert "3 seconds are lost" in str(error)
