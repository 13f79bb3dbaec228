"""Logs behind launchers and collectors, in any encoding and compression: the same steps."""

import bz2
import codecs
import gzip
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from importers.logs import Log, LogContext, complete_steps, read_logs
from tests.importers.logs.log_lines import (
    BEGAN_S,
    NAN,
    at,
    bar,
    megatron,
    neuronx,
    read,
    trainer,
)

# A line and its moment, seconds after the beginning.
Line = tuple[str, float]
Wrap = Callable[[str, float], str]


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGAN_S + seconds, UTC)


def iso(seconds: float, *, digits: int = 3) -> str:
    return f"{utc(seconds):%Y-%m-%dT%H:%M:%S.%f}"[: 20 + digits] + "Z"


def syslog(seconds: float) -> str:
    return f"{utc(seconds):%b} {utc(seconds).day:2d} {utc(seconds):%H:%M:%S}"


def docker(text: str, seconds: float) -> str:
    return json.dumps({"log": f"{text}\n", "stream": "stderr", "time": iso(seconds)})


def journal(text: str, seconds: float) -> str:
    record = {
        "__REALTIME_TIMESTAMP": str(round((BEGAN_S + seconds) * 1e6)),
        "_HOSTNAME": "trn-03",
        "MESSAGE": text,
    }
    return json.dumps(record)


def fluent(text: str, seconds: float) -> str:
    record = {
        "date": BEGAN_S + seconds,
        "log": f"{iso(seconds)} stderr F {text}",
        "kubernetes": {"pod_name": "llama-worker-3", "container_name": "pytorch"},
    }
    return json.dumps(record)


def ruby(text: str, seconds: float) -> str:
    return f'[0] kube.llama: [[{BEGAN_S + seconds:.9f}, {{}}], {{"log"=>"{text}"}}]'


def ecs(text: str, seconds: float) -> str:
    record = {"@timestamp": iso(seconds), "log": {"level": "INFO"}, "message": text}
    return json.dumps(record | {"ecs": {"version": "8.11"}, "host": {"name": "trn-03"}})


def vector(text: str, seconds: float) -> str:
    record = {"host": "trn-03", "message": text, "source_type": "file", "file": "/var/log/x"}
    return json.dumps(record | {"timestamp": iso(seconds, digits=6)})


def loki(text: str, seconds: float) -> str:
    return json.dumps({"labels": {"app": "llama"}, "line": text, "timestamp": iso(seconds)})


def otel(text: str, seconds: float) -> str:
    nanoseconds = str(round((BEGAN_S + seconds) * 1e9))
    record = {"timeUnixNano": nanoseconds, "body": {"stringValue": text}}
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})


def events(text: str, seconds: float) -> str:
    """Write a record as `aws logs get-log-events` prints it, over several lines."""
    record = {"timestamp": round((BEGAN_S + seconds) * 1e3), "message": text}
    return json.dumps({"events": [record | {"ingestionTime": 1}]}, indent=4)


def insights(text: str, seconds: float) -> str:
    """Write a row as `aws logs get-query-results` returns it."""
    stamp = {"field": "@timestamp", "value": f"{utc(seconds):%Y-%m-%d %H:%M:%S.%f}"[:23]}
    row = [stamp, {"field": "@message", "value": text}, {"field": "@ptr", "value": "CmEK"}]
    return json.dumps({"results": [row], "status": "Complete"})


def insights_over_lines(text: str, seconds: float) -> str:
    return json.dumps(json.loads(insights(text, seconds)), indent=4)


def subscribed(text: str, seconds: float) -> str:
    record = {
        "id": "1",
        "timestamp": round((BEGAN_S + seconds) * 1e3),
        "message": docker(text, seconds),
    }
    return json.dumps({"messageType": "DATA_MESSAGE", "logEvents": [record]})


def grafana(text: str, seconds: float) -> str:
    pair = [str(round((BEGAN_S + seconds) * 1e9)), text]
    return json.dumps({"data": {"result": [{"stream": {"app": "x"}, "values": [pair]}]}})


def coloured(text: str, seconds: float) -> str:
    return f"\x1b[36m(RayTrainWorker pid=3021, ip=10.4.2.17)\x1b[0m {text}"


WRAPPERS: tuple[tuple[str, Wrap], ...] = (
    ("nothing", lambda text, s: text),
    ("Docker's json-file", docker),
    ("Kubernetes CRI", lambda text, s: f"{iso(s, digits=6)} stdout F {text}"),
    ("CloudWatch export", lambda text, s: f"{iso(s)} {text}"),
    ("aws logs tail", lambda text, s: f"{iso(s)} llama/algo-1-1795500000 {text}"),
    ("aws logs get-log-events", events),
    ("aws logs get-query-results", insights_over_lines),
    ("CloudWatch Insights", insights),
    ("CloudWatch subscription of Docker", subscribed),
    ("CloudWatch CSV", lambda text, s: f'{round((BEGAN_S + s) * 1e3)},"{text}"'),
    ("Fluentd", lambda text, s: f"{utc(s).isoformat()}\tdocker.6af\t{docker(text, s)}"),
    ("Fluent Bit", fluent),
    ("Fluent Bit's stdout", ruby),
    ("Loki's logcli, jsonl", loki),
    ("Loki's logcli", lambda text, s: f'{iso(s)} {{app="llama", pod="llama-0"}} {text}'),
    ("Loki's API", grafana),
    ("journalctl -o json", journal),
    ("journalctl", lambda text, s: f"{syslog(s)} trn-03 train.sh[4711]: {text}"),
    ("journalctl short-iso", lambda text, s: f"{utc(s):%Y-%m-%dT%H:%M:%S}+0000 trn-03 python[1]: {text}"),  # noqa: E501
    ("Vector", vector),
    ("ECS", ecs),
    ("OpenTelemetry", otel),
    ("srun --label", lambda text, s: f" 3: {text}"),
    ("torchrun", lambda text, s: f"[default3]:{text}"),
    ("torchrun, rank", lambda text, s: f"[rank3]: {text}"),
    ("mpirun", lambda text, s: f"[1,3]<stderr>:{text}"),
    ("horovodrun", lambda text, s: f"{utc(s):%a %b %d %H:%M:%S %Y}[3]<stdout>:{text}"),
    ("pdsh", lambda text, s: f"trn-03: {text}"),
    ("Ray", lambda text, s: f"(RayTrainWorker pid=3021, ip=10.4.2.17) {text}"),
    ("Ray, coloured", coloured),
    ("kubectl --prefix", lambda text, s: f"[pod/llama-worker-3/pytorch] {text}"),
    ("stern", lambda text, s: f"llama-worker-3 pytorch {text}"),
    ("docker compose", lambda text, s: f"trainer-0  | {text}"),
    ("SageMaker", lambda text, s: f"[1,mpirank:3,algo-1]<stdout>:#015{text}"),
    ("SageMaker, coloured", lambda text, s: f"#033[34m{text}#033[0m"),
    ("SageMaker local", lambda text, s: f"algo-1-k3x9q  | {text}"),
    ("Windows' line ends", lambda text, s: f"{text}\r"),
    ("written out", lambda text, s: f"\\033[32m{text}\\033[0m\\015"),
    ("cat -v", lambda text, s: f"^[[32m{text}^[[0m^M"),
    ("ts", lambda text, s: f"{syslog(s)} {text}"),
    ("Python's logging", lambda text, s: f"{at(s)} - launcher - INFO - {text}"),
    ("a tool of a team", lambda text, s: f"<<job 17/llama>> {text}"),
    ("Kubernetes, Ray, torchrun", lambda text, s: f"{iso(s)} stdout F (W pid=7) [rank0]: {text}"),
)  # fmt: skip


def hugging_face() -> list[Line]:
    """Return 100 steps of 6.5 s as Hugging Face's and Optimum Neuron's trainers print them."""
    lines: list[Line] = [("Loading the tokenizer {'vocab': 32000}", 0)]
    for n in range(1, 101):
        took_s = 6.5 * n
        clock = f"{int(took_s) // 60:02d}:{int(took_s) % 60:02d}"
        lines.append((bar(n, 100, clock=clock).replace("2.50s/it", "6.50s/it"), took_s))
        if n % 10 == 0:
            lines.append((trainer(round(4 - n / 100, 4)), took_s))
    return lines


def titan() -> list[Line]:
    return [
        (
            f"[titan] {at(55.01 * n)} - root - INFO - step: {10 * n:2}  loss:  {4 - n / 10:.5f}  "
            "grad_norm:  0.9100  memory: 33.10GiB(34.8%)  tps: 3,720  mfu: 19.05%",
            55.01 * n,
        )
        for n in range(1, 11)
    ]


def nxd() -> list[Line]:
    return [(neuronx(n, step_s=6.5, loss=4 - n / 100, rate=64.0), 6.5 * n) for n in range(1, 101)]


def of_megatron() -> list[Line]:
    return [(megatron(n, ms=6_500.0).replace("6.79", "3.00"), 6.5 * n) for n in range(1, 101)]


# The last step, its duration and its loss, how many steps are logged.
FAMILIES: dict[str, tuple[str, Callable[[], list[Line]], float, int]] = {
    "Hugging Face": ("Optimum-Neuron", hugging_face, 6.5, 10),
    "torchtitan": ("torchtitan", titan, 5.501, 10),
    "NxD": ("neuronx-distributed", nxd, 6.5, 100),
    "Megatron": ("Megatron", of_megatron, 6.5, 100),
}


def facts_of(log: Log) -> tuple[object, ...]:
    """Return the family, how many steps, the last one, their usual duration and the last loss."""
    steps = complete_steps(log.steps, global_batch=NAN, seq_len=NAN)
    usual_s = float(np.nanmedian(steps.step_s))
    return log.family, len(steps), int(steps.step[-1]), usual_s, float(steps.loss[-1])


def expect_right(logs: Mapping[Any, Log], name: str) -> None:
    family, _, step_s, n_steps = FAMILIES[name]
    right = (family, n_steps, 100, pytest.approx(step_s, rel=0.005), 3.0)

    assert {which: facts_of(log) for which, log in logs.items()} == dict.fromkeys(logs, right)


def wrapped(lines: Sequence[Line], wrap: Wrap) -> Log:
    return read("\n".join(wrap(text, s) for text, s in lines))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_log_is_the_same_behind_each_wrapper(family: str) -> None:
    lines = FAMILIES[family][1]()

    expect_right({name: wrapped(lines, wrap) for name, wrap in WRAPPERS}, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_collector_may_stand_around_a_launcher(family: str) -> None:
    inner = dict(WRAPPERS)["torchrun, rank"]
    lines = [(inner(text, s), s) for text, s in FAMILIES[family][1]()]

    expect_right({name: wrapped(lines, outer) for name, outer in WRAPPERS[1:22]}, family)


def transcoded(text: str, encoding: str) -> bytes:
    marks = {"utf-16-le, marked": codecs.BOM_UTF16_LE, "utf-16-be, marked": codecs.BOM_UTF16_BE}
    return marks.get(encoding, b"") + text.encode(encoding.split(",", maxsplit=1)[0], "replace")


ENCODINGS = (
    "utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-16-le, marked", "utf-16-be, marked",
    "utf-32", "latin-1",
)  # fmt: skip


def stored(folder: Path, data: bytes) -> Log:
    path = folder / "train.log"
    path.write_bytes(data)
    return read_logs([path], LogContext(year=2026))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_log_is_the_same_in_each_encoding(tmp_path: Path, family: str) -> None:
    lines = FAMILIES[family][1]()
    texts = {end: "".join(text + end for text, _ in lines) for end in ("\n", "\r\n")}
    logs = {
        (encoding, end): stored(tmp_path, transcoded(text, encoding))
        for encoding in ENCODINGS
        for end, text in texts.items()
    }

    expect_right(logs, family)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": partial(lzma.compress, preset=0),
    "bz2": partial(bz2.compress, compresslevel=1),
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_log_is_the_same_in_each_compression(tmp_path: Path, family: str) -> None:
    text = "\n".join(text for text, _ in FAMILIES[family][1]())
    contents = (text.encode(), codecs.BOM_UTF16_LE + text.encode("utf-16-le"))
    logs = {
        (kind, i): stored(tmp_path, pack(data))
        for kind, pack in PACKED.items()
        for i, data in enumerate(contents)
    }

    expect_right(logs, family)


@pytest.mark.parametrize("kind", ["xz", "bz2", "zst"])
def test_a_compressed_log_that_breaks_off_counts_as_far_as_it_goes(
    tmp_path: Path, kind: str
) -> None:
    # Enough for several blocks of each compression.
    text = "".join(f"{neuronx(n, loss=n / 7)} {n * n:x}\n" for n in range(6_000)).encode()
    packed = PACKED[kind](text)
    path = tmp_path / "train.log"
    path.write_bytes(packed[: len(packed) * 9 // 10])

    assert 1_000 < len(read_logs([path], LogContext()).steps) < 6_000


def test_lines_that_a_container_runtime_cut_are_joined() -> None:
    text = neuronx(7)
    cut = f"{iso(1)} stdout P {text[:20]}\n{iso(1)} stdout F {text[20:]}\n"

    assert read(cut).steps.columns()["step"].tolist() == [7]


def test_the_envelope_s_time_is_that_of_a_line_that_has_none() -> None:
    log = read("\n".join(docker(neuronx(n), 10.0 * n) for n in range(1, 4)))

    np.testing.assert_allclose(
        log.steps.columns()["at_s"], [BEGAN_S + 10, BEGAN_S + 20, BEGAN_S + 30]
    )


def test_a_record_of_training_is_no_envelope() -> None:
    line = '{"step": 10, "loss": 2.5, "step_time": 1.25, "message": "logged", "event": {"a": 1}}'

    assert read(line).steps.columns()["step_s"].tolist() == [1.25]


TIMES = (
    "2026/05/01 12:00:07", "05/01/2026 12:00:07 - INFO - ", "[05/01/26 12:00:07] INFO ",
    "[05/01 12:00:07 d2.utils.events]: ", "01/May/2026:12:00:07 +0000 ", "1777636807 ",
    "[1777636807.000] ", "2026-May-01 12:00:07.000 ", "I0501 12:00:07.000000 train.py:88] ",
    "2026-05-01 14:00:07 +0200 ", "2026-05-01 12:00:07 UTC ", "[INFO|trainer.py:88] 2026-05-01 12:00:07,000 >> ",  # noqa: E501
    "Fri May  1 12:00:07 2026 ", "worker 7, 2026-05-01T12:00:07Z: ",
)  # fmt: skip


@pytest.mark.parametrize("time", TIMES)
def test_times_of_usual_forms_are_read(time: str) -> None:
    (found,) = read(f"{time} {neuronx(1)}").steps.columns()["at_s"]

    assert found == BEGAN_S + 7


def test_a_time_of_day_times_steps() -> None:
    lines = [f"{utc(55.0 * n):%H:%M:%S} | step: {10 * n} loss: 2.5 tps: 9" for n in range(1, 9)]
    steps = complete_steps(read("\n".join(lines)).steps, global_batch=NAN, seq_len=NAN)

    np.testing.assert_allclose(steps.step_s[1:], 5.5)
    assert not steps.is_dated
