"""Ingest clients: counts are always stored, metadata now and then."""

from pathlib import Path

import pytest

from fleet.ingest.nodes import KEEP_EVERY_S, LastStored
from telemetry.ingest.neuron_monitor import Reading, read_line
from telemetry.store.node_state import NodeReport

DATA = Path(__file__).parents[2] / "telemetry/ingest/data"


def reading(stream: str = "trn1.32xlarge") -> Reading:
    return read_line((DATA / f"{stream}.ndjson").read_bytes().splitlines()[0])


@pytest.fixture
def last_stored() -> LastStored:
    return LastStored()


def kept(reports: list[NodeReport]) -> list[bool]:
    return [bool(report.line) for report in reports]


def test_of_reports_that_come_together_the_last_is_kept(last_stored: LastStored) -> None:
    accepted = [(reading(), 100.0 + second) for second in range(3)]

    notes = last_stored.reports("a", accepted, now_s=0.0)

    assert kept(notes) == [False, False, True]
    assert [note.at_s for note in notes] == [100.0, 101.0, 102.0]
    assert all(note.executed for note in notes)


def test_the_next_is_kept_after_a_while(last_stored: LastStored) -> None:
    every = [last_stored.reports("a", [(reading(), s)], now_s=s) for s in (0.0, 1.0, KEEP_EVERY_S)]

    assert [kept(notes) for notes in every] == [[True], [False], [True]]


def test_it_is_kept_at_once_when_processes_come_or_go(last_stored: LastStored) -> None:
    kinds = ["trn1.32xlarge", "trn1.32xlarge-idle", "trn1.32xlarge-idle", "trn1.32xlarge"]

    every = [last_stored.reports("a", [(reading(each), 1.0)], now_s=1.0) for each in kinds]

    assert [kept(notes) for notes in every] == [[True], [True], [False], [True]]


def test_without_a_report_there_is_nothing_to_note(last_stored: LastStored) -> None:
    assert last_stored.reports("a", [], now_s=0.0) == []
    assert kept(last_stored.reports("a", [(reading(), 1.0)], now_s=0.0)) == [True]
