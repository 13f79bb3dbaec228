"""Reports as columns decode to the same reports."""

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.agent.clock import Moment
from telemetry.agent.reports import MONITOR, encode_columns, encode_tail, group_frames
from telemetry.agent.spool import Frame, gzip_member
from telemetry.ingest.columns import compute, read_columns, recipe_of
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import Reading, read_line
from tests.telemetry.ingest.reports import SAMPLES, cores, group, lines, report

STREAM = "0123456789abcdef"
PARTS = ("index", "pid", "port", "_count")
AGENT = {
    "version": "1",
    "n_waiting": 3,
    "n_dropped": 0,
    "n_refused": 0,
    "n_skipped": 0,
    "problem": "x",
}
Document = dict[str, Any]


def compact(document: Any) -> bytes:
    """Write JSON as neuron-monitor and the agent do."""
    return json.dumps(document, separators=(",", ":")).encode()


def efa(turn: int, *, counters: bool = False) -> Document:
    """Return sysfs values to send with a report."""
    shown = [
        {"device": f"rdmap{i}", "port": 1, "index": i, "increase": {"tx_bytes": turn * 100 + i}}
        for i in range(4)
    ]
    more = {"counters": {"tx_bytes": 10**15 + turn}, "latency_s": 2e-5} if counters else {}
    return {"period": 1.0 + turn / 1000, "devices": [shown[0] | more, *shown[1:]]}


def as_sent(reports: list[bytes], sidecars: list[Document]) -> bytes:
    """Return reports of one template as the agent's one line."""
    frames = [
        Frame(
            MONITOR,
            turn + 1,
            Moment(1000.0 + turn, 0.0),
            bytes(16),
            gzip_member(encode_tail(text, next_to)),
        )
        for turn, (text, next_to) in enumerate(zip(reports, sidecars, strict=True))
    ]
    [run] = group_frames(frames)
    assert len(run.rows) == len(frames)
    seq = [frame.seq for frame in frames]
    at_s = [frame.made.wall_s for frame in frames]
    return encode_columns(run.rows, stream=STREAM, seq=seq, at_s=at_s, health=AGENT)


def one_by_one(reports: list[bytes], sidecars: list[Document]) -> list[bytes]:
    """Return the same as lines of their own."""
    made = []
    for turn, (text, next_to) in enumerate(zip(reports, sidecars, strict=True)):
        head: Document = {"at": 1000.0 + turn, "seq": turn + 1, "stream": STREAM}
        head |= {"agent": AGENT} if turn == len(reports) - 1 else {}
        made.append(compact(head)[:-1] + b"," + encode_tail(text, next_to).rstrip())
    return made


def same(found: Reading, wanted: Reading) -> None:
    """Compare two readings in everything."""
    for name in Reading.__struct_fields__:
        if name not in {"values", "line"}:
            assert getattr(found, name) == getattr(wanted, name), name
    assert list(found.values) == list(wanted.values)
    for name, values in wanted.values.items():
        np.testing.assert_array_equal(found.values[name], values, err_msg=name)
    assert json.loads(bytes(found.line))["report"] == json.loads(bytes(wanted.line))["report"]


def checked(reports: list[bytes], sidecars: list[Document] | None = None) -> bool:
    """Compare both forms, and return whether the quick way was open."""
    sidecars = sidecars or [{} for _ in reports]
    table = read_columns(as_sent(reports, sidecars))
    plain = one_by_one(reports, sidecars)
    expanded = list(table.expanded())
    assert [json.loads(line) for line in expanded] == [json.loads(line) for line in plain]
    quick = table.readings()
    for found, line in zip(quick or [], plain, strict=quick is not None):
        same(found, read_line(line))
    return quick is not None


@pytest.mark.parametrize("sample", SAMPLES)
def test_recorded_reports_are_read_the_quick_way(sample: str) -> None:
    reports = (lines(sample) * 4)[:10]

    assert checked(reports)
    assert checked(reports, [{"efa": efa(turn)} for turn in range(10)])


def bent(document: Document, rng: random.Random, worst: float | None) -> Document:
    """Change some of the numbers of a report that measure; none of them if worst is None."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        if isinstance(value, dict | list):
            bent(value, rng, worst)  # type: ignore[arg-type]
        elif isinstance(value, int | float) and not str(key).endswith(PARTS):
            document[key] = value if worst is None else rng.choice([value, value, value, worst])
    return document


@settings(max_examples=40, deadline=None)
@given(
    sample=st.sampled_from(SAMPLES),
    seed=st.integers(0, 2**32),
    worst=st.sampled_from([None, 0, 0.5, 3, 99.75, 101, 1e6 + 0.25, 1e-9, 123_456.5, 2.0**53, -1]),
)
def test_any_numbers_are_read_as_they_are_one_by_one(
    sample: str, seed: int, worst: float | None
) -> None:
    rng = random.Random(seed)
    reports = [compact(bent(report(sample), rng, worst)) for _ in range(3)]
    sidecars = [{"efa": bent(efa(turn), rng, worst)} for turn in range(3)]
    table = read_columns(as_sent(reports, sidecars))
    quick = table.readings()

    plain = one_by_one(reports, sidecars)
    assert quick is not None or worst is not None
    for found, line in zip(quick or [], plain, strict=quick is not None):
        same(found, read_line(line))


def without_utilization(document: Document) -> None:
    for use in cores(document).values():
        del use["neuroncore_utilization"]


def with_an_odd_core(document: Document) -> None:
    cores(document)["9"] = {"neuroncore_utilization": 1.5}


def without_hardware(document: Document) -> None:
    del document["neuron_hardware_info"]


UNUSUAL: list[Callable[[Document], None]] = [
    without_utilization,
    with_an_odd_core,
    without_hardware,
]


def node(number: int) -> list[bytes]:
    """Return reports of one node of many, with names of its own."""
    made = []
    for line in lines("trn2.48xlarge")[:2]:
        document = json.loads(line)
        document["instance_info"]["instance_id"] = f"i-{number:017x}"
        for process in document["neuron_runtime_data"]:
            process |= {"pid": number, "neuron_runtime_tag": str(number)}
        made.append(compact(document))
    return made


def test_like_nodes_share_a_layout_and_keep_their_names() -> None:
    few = [node(number) for number in (1, 2, 3_000_000)]
    recipes = [recipe_of(read_columns(as_sent(each, [{}, {}])).sent.template) for each in few]

    assert len({id(recipe and recipe.layout) for recipe in recipes}) == 1
    assert all(map(checked, few))


def test_tables_of_several_nodes_are_computed_as_each_alone() -> None:
    beyond = report("trn2.48xlarge")
    cores(beyond)["0"]["neuroncore_utilization"] = 250.5
    sent = [as_sent(node(number), [{}, {}]) for number in (1, 2)]
    sent.append(as_sent([compact(beyond)] * 2, [{}, {}]))
    sent.append(as_sent(lines("trn1.2xlarge")[:3], [{"efa": efa(turn)} for turn in range(3)]))
    sent.append(as_sent(node(3), [{}, {}]))
    tables = [read_columns(each) for each in sent]

    compute(tables)

    assert [table.found is None for table in tables] == [False, False, True, False, False]
    for table, text in zip(tables, sent, strict=True):
        alone = read_columns(text).readings()
        for found, wanted in zip(table.readings() or [], alone or [], strict=True):
            same(found, wanted)
    assert [table.node for table in tables[:3]] == [f"i-{1:017x}", f"i-{2:017x}", ""]


def test_the_template_of_each_of_many_nodes_is_read_once() -> None:
    [template] = {read_columns(as_sent(node(1), [{}, {}])).sent.template}
    many = [template.replace('"i-0', f'"i-{number}') for number in range(2_000)]

    known = [recipe_of(each) for each in many]

    assert all(recipe_of(each) is recipe for each, recipe in zip(many, known, strict=True))
    assert len({recipe and recipe.identity for recipe in known}) == len(many)


def test_processes_of_one_tag_add_up() -> None:
    document = report("trn2.48xlarge")
    document["neuron_runtime_data"] *= 2

    assert checked([compact(document)] * 2)


@pytest.mark.parametrize("change", UNUSUAL)
def test_an_unusual_template_is_left_to_be_read_one_by_one(
    change: Callable[[Document], None],
) -> None:
    document = report("trn1.2xlarge")
    change(document)

    assert not checked([compact(document)] * 2)


def test_a_group_that_failed_is_absent_here_too() -> None:
    document = report("trn1.2xlarge")
    group(document, "execution_stats")["error"] = "it broke"

    assert checked([compact(document)] * 2)


def test_all_counters_and_large_numbers_are_left_to_be_read_one_by_one() -> None:
    sidecars = [{"efa": efa(turn, counters=True)} for turn in range(2)]

    assert not checked(lines("trn1.2xlarge")[:2], sidecars)


def test_a_percentage_beyond_all_bounds_is_refused_as_ever() -> None:
    document = report("trn1.2xlarge")
    cores(document)["0"]["neuroncore_utilization"] = 250.5
    table = read_columns(as_sent([compact(report("trn1.2xlarge")), compact(document)], [{}, {}]))
    good, bad = table.expanded()

    assert table.readings() is None
    assert read_line(good).seq == 1
    with pytest.raises(RefusedError, match=r"<= 101"):
        read_line(bad)


def line(**changed: Any) -> bytes:
    """Return a line of two reports, with something wrong."""
    floats = base64.b64encode(np.array([1.0]).tobytes()).decode()
    shown = {
        "stream": STREAM,
        "seq": [1, 2],
        "at": [1.0, 2.0],
        "template": '{"report":{"x":\x7f}}',
        "once": floats,
        "varies": [0],
        "more": floats,
    }
    return compact({"columns": shown | changed})


def test_a_template_without_numbers_is_read_once_for_each_report() -> None:
    without = line(template='{"report":{"x":true}}', once="", varies=[], more="")

    assert [json.loads(one)["report"] for one in read_columns(without).expanded()] == [
        {"x": True},
        {"x": True},
    ]


@pytest.mark.parametrize(
    ("changed", "field", "reason"),
    [
        ({"at": [1.0]}, "columns.at", "1 moments for 2"),
        ({"seq": []}, "columns.seq", "length >= 1"),
        ({"template": "[]"}, "columns.template", "not a JSON object"),
        ({"template": '{"x":\x7f}\n'}, "columns.template", "not a JSON object"),
        ({"varies": [1]}, "columns.varies", "names hole 1"),
        ({"varies": [-1]}, "columns.varies.0", ">= 0"),
        ({"once": "@"}, "columns.once", "Invalid base64"),
        ({"once": ""}, "columns.once", "0 bytes for 1 numbers"),
        ({"more": ""}, "columns.more", "0 bytes for 1 numbers"),
        ({"once": base64.b64encode(b"\xff" * 8).decode()}, "columns.once", "is NaN"),
        ({"stream": "x"}, "columns.stream", "pattern|match"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    changed: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason) as refused:
        read_columns(line(**changed))

    assert refused.value.field == field


@settings(deadline=None)
@given(st.text(max_size=60), st.binary(max_size=16))
def test_no_template_and_no_bytes_bring_it_down(template: str, data: bytes) -> None:
    try:
        text = base64.b64encode(data).decode()
        table = read_columns(line(template=template, once=text, varies=[], more=""))
    except RefusedError:
        return

    assert table.readings() is None
    assert len(list(table.expanded())) == 2
