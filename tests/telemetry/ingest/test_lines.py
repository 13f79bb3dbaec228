"""Lines from pipes and files: together, in pieces, too long."""

import io
import os
import threading
import time
from collections.abc import Iterator
from itertools import chain

import pytest

from telemetry.ingest.lines import read_groups, read_together
from telemetry.ingest.schemas import MAX_LINE_BYTES


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def say(writing: int, *pieces: bytes, pause_s: float = 0.0) -> threading.Thread:
    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
                time.sleep(pause_s)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_lines_that_are_there_together_come_together(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    say(writing, b"a\nb\n", b"c").join()

    assert list(chain.from_iterable(read_together(reading))) == [b"a", b"b", b"c"]


def test_a_live_line_is_not_held_back(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    thread = say(writing, b"first\n", b"second\n", pause_s=0.5)
    began = time.monotonic()

    groups = read_together(reading)

    assert next(groups) == [b"first"]
    assert time.monotonic() - began < 0.4
    assert next(groups) == [b"second"]
    thread.join()


def test_a_line_in_pieces_is_one_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    thread = say(writing, b"one", b" and", b" whole\nnext\n", pause_s=0.1)

    assert list(chain.from_iterable(read_together(reading))) == [b"one and whole", b"next"]
    thread.join()


def test_a_line_beyond_measure_is_cut_and_the_next_one_kept(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    thread = say(writing, *[b"x" * 1_000_000] * 40, b"\ngood\n")

    lines = [line for line in chain.from_iterable(read_together(reading)) if line]

    assert len(lines[0]) > MAX_LINE_BYTES
    assert lines[1:] == [b"good"]
    thread.join()


def test_a_file_comes_in_groups() -> None:
    file = io.BytesIO(b"1\n2\n3\n")

    assert list(read_groups(file, most=2)) == [[b"1\n", b"2\n"], [b"3\n"]]


def test_of_a_line_beyond_measure_only_the_beginning_is_read() -> None:
    file = io.BytesIO(b"a\n" + b"x" * (3 * MAX_LINE_BYTES) + b"\nb\n")

    lines = list(chain.from_iterable(read_groups(file)))

    assert [len(line) for line in lines] == [2, MAX_LINE_BYTES + 1, 2]
