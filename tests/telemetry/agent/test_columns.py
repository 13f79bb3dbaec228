"""Which reports are sent together as columns."""

import json
from collections.abc import Sequence

import pytest

from telemetry.agent.clock import Moment
from telemetry.agent.reports import (
    MAX_ROWS,
    MONITOR,
    FrameGroup,
    encode_columns,
    encode_tail,
    group_frames,
)
from telemetry.agent.spool import Frame, gzip_member


def split(texts: Sequence[bytes]) -> list[FrameGroup]:
    """Split reports into runs."""
    moment = Moment(0.0, 0.0)
    return [
        *group_frames(
            [
                Frame(MONITOR, seq, moment, bytes(16), gzip_member(encode_tail(text, {})))
                for seq, text in enumerate(texts)
            ]
        )
    ]


def lengths(*texts: bytes) -> list[tuple[int, bool]]:
    """Return how long each run is, and whether it goes as columns."""
    return [(len(run.frames), run.is_columns) for run in split(texts)]


def test_reports_that_differ_in_numbers_alone_go_together() -> None:
    assert lengths(b'{"a":1,"b":2.5}', b'{"a":3,"b":-1e-7}') == [(2, True)]


def test_another_template_begins_another_run_in_order() -> None:
    assert lengths(b'{"a":1}', b'{"a":2}', b'{"b":1}', b'{"a":3}') == [
        (2, True),
        (1, False),
        (1, False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"x"}',
        b'{"a":9007199254740994}',
        b'{"a":1,"b":"\x7f"}',
        b'{"a":1,"b":"\xff"}',
        b'{"a":"in \\"text\\":5,","b":1}',
        b"{}",
    ],
)
def test_whatever_does_not_fit_goes_as_it_is(text: bytes) -> None:
    assert lengths(text, text, b'{"a":1}', b'{"a":2}') == [(2, False), (2, True)]


def test_what_counts_or_names_parts_belongs_to_the_template() -> None:
    text = b'{"pid":1,"neuron_device_index":2,"neuron_device_count":3,"port":4,"period":5}'
    [run] = split([text, text])

    assert list(run.rows[0].numbers) == [5.0]


def test_a_run_has_an_end() -> None:
    assert lengths(*[b'{"a":1}'] * (MAX_ROWS + 2)) == [(MAX_ROWS, True), (2, True)]


def test_what_stays_is_sent_once() -> None:
    [run] = split([b'{"a":1,"b":2}', b'{"a":1,"b":3}'])
    shown = json.loads(
        encode_columns(run.rows, stream="s", seq=[1, 2], at_s=[0.0, 1.0], health={})
    )

    assert shown["columns"]["template"] == '{"report":{"a":\x7f,"b":\x7f}}'
    assert shown["columns"]["varies"] == [1]
    assert len(shown["columns"]["once"]) > len(shown["columns"]["more"])
