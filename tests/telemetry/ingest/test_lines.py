"""Lines from pipes and files: together, in pieces, too long."""

import fcntl
import io
import os
import threading
import time
from collections.abc import Iterator
from itertools import chain

import pytest

from telemetry.ingest.lines import join_documents, read_groups, read_together, split_whole
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


def test_a_pipe_of_a_process_with_many_open_files_is_read(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    say(writing, b"a\n").join()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, 1024)
    try:
        assert list(chain.from_iterable(read_together(high))) == [b"a"]
    finally:
        os.close(high)


def test_a_live_line_is_not_held_back(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    groups = read_together(reading)

    # Each line is written only after the one before it was read.
    for line in (b"first", b"second"):
        os.write(writing, line + b"\n")
        assert next(groups) == [line]
    os.close(writing)
    assert list(groups) == []


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


PRINTED = b'{\n  "a": [\n    1\n  ]\n}\n'
JOINED = b'{   "a": [     1   ] }'


def test_an_object_over_several_lines_is_one_line_and_numbers_stay() -> None:
    data = b"x\n" + PRINTED + b'{"b": 2}\n'

    assert join_documents(data).split(b"\n") == [b"x", JOINED, *[b""] * 4, b'{"b": 2}', b""]


@pytest.mark.parametrize(
    "data",
    [b'{"a": 1}\n{"b": 2}\n', b'{\n"a": 1\n}\n', b'{\n  "a": 1\n{"b": 2}\n}\n', b"{\n  1\n"],
    ids=["compact", "not indented", "never closed", "cut off"],
)
def test_other_lines_stay_as_they_are(data: bytes) -> None:
    assert join_documents(data) == data


def test_an_object_that_is_not_whole_waits_for_its_end() -> None:
    assert split_whole(PRINTED + b'{\n  "a"\n  ') == (join_documents(PRINTED), b'{\n  "a"\n  ')
    assert split_whole(b'{\n  "a"\n{"b": 2}\n{"c"') == (b'{\n  "a"\n{"b": 2}\n', b'{"c"')


def test_an_object_is_not_divided_between_groups_of_a_file() -> None:
    groups = list(read_groups(io.BytesIO(b"1\n" + PRINTED + b"2\n"), most=2))

    assert [line for group in groups for line in group if line.strip()] == [b"1", JOINED, b"2\n"]


def test_an_object_comes_through_a_pipe_in_pieces(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    thread = say(writing, PRINTED[:8], PRINTED[8:] + b"next\n", pause_s=0.2)

    lines = [line for line in chain.from_iterable(read_together(reading)) if line]

    assert lines == [JOINED, b"next"]
    thread.join()


def test_a_file_comes_in_groups() -> None:
    file = io.BytesIO(b"1\n2\n3\n")

    assert list(read_groups(file, most=2)) == [[b"1\n", b"2\n"], [b"3\n"]]


def test_of_a_line_beyond_measure_only_the_beginning_is_read() -> None:
    file = io.BytesIO(b"a\n" + b"x" * (3 * MAX_LINE_BYTES) + b"\nb\n")

    lines = list(chain.from_iterable(read_groups(file)))

    assert [len(line) for line in lines] == [2, MAX_LINE_BYTES + 1, 2]
