"""The spool: ordered, bounded, consistent after a crash."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telemetry.agent.clock import Moment
from telemetry.agent.spool import Spool, SpoolError

NOON = Moment(1_795_262_400.0, 5_000.0)
BOOT = b"0123456789abcdef"
MEGA = 1_000_000
Open = Callable[..., Spool]


@pytest.fixture
def open_spool(tmp_path: Path) -> Iterator[Open]:
    """Give a function that opens the spool, after closing the one before."""
    opened: list[Spool] = []

    def open_one(max_bytes: int = MEGA, now: Moment = NOON) -> Spool:
        while opened:
            opened.pop().close()
        opened.append(Spool(tmp_path / "spool", max_bytes=max_bytes, boot=BOOT, now=now))
        return opened[-1]

    yield open_one
    for spool in opened:
        spool.close()


def waiting(spool: Spool) -> list[bytes]:
    """Deliver everything, and return it."""
    found: list[bytes] = []
    while frames := spool.next_frames(max_frames=3, max_bytes=MEGA):
        found += [frame.tail for frame in frames]
        spool.mark_delivered(frames[-1].seq)
    return found


def test_lines_come_out_as_they_went_in(open_spool: Open) -> None:
    spool = open_spool()
    numbers = [spool.append(0, NOON, b"line %d" % i) for i in range(10)]

    assert spool.n_waiting == 10
    assert numbers == list(range(numbers[0], numbers[0] + 10))
    assert waiting(spool) == [b"line %d" % i for i in range(10)]
    assert spool.n_waiting == 0


def test_what_was_not_delivered_is_still_there_after_a_restart(open_spool: Open) -> None:
    spool = open_spool()
    for i in range(5):
        spool.append(i % 2, NOON, b"%d" % i)
    spool.mark_delivered(spool.next_frames(max_frames=1, max_bytes=MEGA)[0].seq)
    stream = spool.stream

    again = open_spool(now=Moment(0.0, 1.0))

    assert again.stream == stream
    assert [again.next_frames(max_frames=9, max_bytes=MEGA)[0].kind] == [1]
    assert waiting(again) == [b"1", b"2", b"3", b"4"]


def test_numbers_rise_even_where_the_clock_was_set_back(open_spool: Open) -> None:
    before = open_spool().append(0, NOON, b"x")

    assert open_spool(now=Moment(0.0, 1.0)).append(0, NOON, b"y") > before


def test_lines_of_two_kinds_are_never_handed_out_together(open_spool: Open) -> None:
    spool = open_spool()
    for kind in (0, 0, 1, 0):
        spool.append(kind, NOON, b"x")

    batches = []
    while frames := spool.next_frames(max_frames=9, max_bytes=MEGA):
        batches.append([frame.kind for frame in frames])
        spool.mark_delivered(frames[-1].seq)

    assert batches == [[0, 0], [1], [0]]


def test_beyond_its_size_the_oldest_go_and_are_counted(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool(max_bytes=100_000)
    for i in range(300):
        spool.append(0, NOON, b"%03d" % i + os.urandom(1_000))

    on_disk = sum(path.stat().st_size for path in (tmp_path / "spool").glob("*.frames"))
    left = waiting(spool)
    assert on_disk <= 100_000
    assert spool.n_dropped + len(left) == 300
    assert [line[:3] for line in left] == [b"%03d" % i for i in range(300 - len(left), 300)]


@pytest.mark.parametrize("cut", [1, 3, 6, 8, 40, 53, 58, 59])
def test_a_torn_end_costs_only_the_line_that_was_torn(
    open_spool: Open, tmp_path: Path, cut: int
) -> None:
    spool = open_spool()
    for i in range(3):
        spool.append(0, NOON, b"line %d" % i)
    [path] = (tmp_path / "spool").glob("*.frames")
    os.truncate(path, path.stat().st_size - cut)

    again = open_spool()
    again.append(0, NOON, b"later")

    assert waiting(again) == [b"line 0", b"line 1", b"later"]


def test_a_damaged_file_is_given_up_rather_than_stood_still_at(
    open_spool: Open, tmp_path: Path
) -> None:
    spool = open_spool()
    spool.append(0, NOON, b"lost")
    [path] = (tmp_path / "spool").glob("*.frames")
    path.write_bytes(b"?" * path.stat().st_size)

    assert spool.next_frames(max_frames=1, max_bytes=MEGA) == []
    assert spool.n_dropped == 1
    spool.append(0, NOON, b"kept")
    assert waiting(spool) == [b"kept"]


def test_a_disk_that_is_full_costs_the_line_and_no_more(
    open_spool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool()
    spool.append(0, NOON, b"before")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(OSError, match="fit on the disk"):
        spool.append(0, NOON, b"too much")
    monkeypatch.undo()
    spool.append(0, NOON, b"after")

    assert waiting(spool) == [b"before", b"after"]


def test_two_agents_do_not_share_a_spool(open_spool: Open, tmp_path: Path) -> None:
    open_spool()

    with pytest.raises(SpoolError, match="another agent"):
        Spool(tmp_path / "spool", max_bytes=MEGA, boot=BOOT, now=NOON)


WRITER = """
import sys
from pathlib import Path
from telemetry.agent.clock import Clock
from telemetry.agent.spool import Spool
clock = Clock()
spool = Spool(Path(sys.argv[1]), max_bytes=100_000_000, boot=clock.boot, now=clock.now())
while True:
    seq = spool.append(0, clock.now(), b"x" * 5000)
    if seq % 3 == 0:
        spool.mark_delivered(seq - 2)
    print(seq, flush=True)
"""


def test_a_killed_agent_leaves_all_that_it_had_written(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "spool")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            seen += [int(writer.stdout.readline()) for _ in range(200)]
            writer.send_signal(signal.SIGKILL)
            seen += [int(line) for line in writer.stdout if line.endswith("\n")]
        assert seen == sorted(set(seen))

    with_rest = Spool(tmp_path / "spool", max_bytes=10**8, boot=BOOT, now=NOON)
    found = with_rest.next_frames(max_frames=10**6, max_bytes=10**9)
    with_rest.close()
    assert {frame.seq for frame in found} >= {seq for seq in seen if seq >= found[0].seq}


def test_a_file_that_was_torn_at_its_first_frame_takes_no_later_one_along(
    open_spool: Open, tmp_path: Path
) -> None:
    spool = open_spool()
    seq = spool.append(0, NOON, b"first")
    # Killed as it began a file, by an agent whose numbers are ahead of its clock.
    (tmp_path / "spool" / f"{seq + 1:020d}.frames").write_bytes(b"TWF1 torn")

    spool = open_spool()
    assert spool.append(0, NOON, b"second") == seq + 1
    spool.append(0, NOON, b"third")
    spool.mark_delivered(seq + 1)

    assert waiting(open_spool()) == [b"third"]
