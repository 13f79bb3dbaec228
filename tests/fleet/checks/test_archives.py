"""Archives with wrong sizes or members are refused early."""

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.checks import preflight_files
from fleet.checks.preflight_files import read_files, unpack_uploads
from fleet.ops import compression
from telemetry.errors import FieldError

MB = 1_000_000
FILE = ("pair__a__b.txt", b"as printed")


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    return entry.tobuf(tarfile.GNU_FORMAT)


def swollen(*parts: bytes | int) -> bytes:
    """Pack bytes and many zeros as gzip, without holding all in memory."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    packed = []
    for part in parts:
        left = part if isinstance(part, int) else 0
        if isinstance(part, bytes):
            packed.append(packer.compress(part))
        while left:
            n_bytes = min(left, MB)
            packed.append(packer.compress(bytes(n_bytes)))
            left -= n_bytes
    return b"".join([*packed, packer.flush()])


def tarred(*files: tuple[str, bytes], style: int = tarfile.PAX_FORMAT) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz", format=style, compresslevel=1) as archive:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return body.getvalue()


def zipped(*files: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", method, compresslevel=1) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return body.getvalue()


def claiming_less(data: bytes, n_bytes: int) -> bytes:
    """Return a zip of one file whose directory and header give another size."""
    changed = bytearray(data)
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", changed, changed.index(mark) + offset, n_bytes)
    return bytes(changed)


@pytest.fixture
def n_unpacked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the bytes that come out of gzip."""
    sizes: list[int] = []

    def counted(packed: bytes) -> Iterator[bytes]:
        for piece in compression.gunzip_pieces(packed):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(preflight_files, "gunzip_pieces", counted)
    return lambda: sum(sizes)


@contextmanager
def at_most(n_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n_bytes


def test_a_header_is_refused_by_its_size_before_it_is_read(n_unpacked: Callable[[], int]) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        bomb = swollen(header("x", 50 * MB, kind), 50 * MB)
        with at_most(5 * MB), pytest.raises(FieldError, match=r"out\.tgz has a header of"):
            unpack_uploads([("out.tgz", bomb)])

    assert n_unpacked() < 3 * MB


@pytest.mark.parametrize("name", [".hidden", "__MACOSX/._x", "pair__a__b.txt"])
def test_a_member_is_refused_by_its_size_before_it_is_read(
    n_unpacked: Callable[[], int], name: str
) -> None:
    bomb = swollen(header(name, 50 * MB), 50 * MB)

    with at_most(5 * MB), pytest.raises(FieldError, match="more than 40 MB unpacked"):
        unpack_uploads([("out.tgz", bomb)])

    assert n_unpacked() < MB


def test_what_is_passed_over_counts(n_unpacked: Callable[[], int]) -> None:
    hidden = (header(".hidden", 30 * MB), -(-30 * MB // 512) * 512)
    bomb = swollen(*hidden, *hidden, *hidden, *hidden)

    with at_most(5 * MB), pytest.raises(FieldError, match="more than 40 MB unpacked"):
        unpack_uploads([("out.tgz", bomb)])

    assert n_unpacked() < 70 * MB


def test_all_uploads_share_one_limit() -> None:
    half = tarred(("pair__a__b.txt", bytes(25 * MB)))

    with pytest.raises(FieldError, match=r"with second\.tgz they hold more than 40 MB"):
        unpack_uploads([("first.tgz", half), ("second.tgz", half)])


def test_a_zip_that_claims_little_is_read_no_further() -> None:
    bomb = claiming_less(zipped(("pair__a__b.txt", bytes(50 * MB))), 1_000)

    with at_most(5 * MB), pytest.raises(FieldError, match="damaged"):
        unpack_uploads([("out.zip", bomb)])


def test_a_zip_that_claims_much_is_not_opened() -> None:
    bomb = zipped(("pair__a__b.txt", bytes(50 * MB)))

    with at_most(5 * MB), pytest.raises(FieldError, match="more than 40 MB unpacked"):
        unpack_uploads([("out.zip", bomb)])


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_by_a_method_without_bounds_is_not_unpacked(method: int) -> None:
    bomb = claiming_less(zipped(("pair__a__b.txt", bytes(50 * MB)), method=method), 1_000)

    with at_most(5 * MB), pytest.raises(FieldError, match="packed in another way"):
        unpack_uploads([("out.zip", bomb)])


def test_a_zip_of_very_many_members_is_not_opened() -> None:
    bomb = zipped(*((f".{number}", b"") for number in range(preflight_files.MOST_MEMBERS + 1)))

    with at_most(MB), pytest.raises(FieldError, match="more than 20,000 members"):
        unpack_uploads([("out.zip", bomb)])


def test_a_tar_of_very_many_members_is_read_no_further() -> None:
    one = header(".hidden", 0)
    bomb = swollen(one * (preflight_files.MOST_MEMBERS + 1))

    with at_most(5 * MB), pytest.raises(FieldError, match="more than 20,000 members"):
        unpack_uploads([("out.tgz", bomb)])


def test_very_many_empty_gzip_members_are_read_no_further() -> None:
    bomb = gzip.compress(b"", mtime=0) * (compression.MAX_MEMBERS + 1)

    with pytest.raises(FieldError, match="damaged"):
        unpack_uploads([("out.tgz", bomb)])


def test_files_of_a_folder_are_read_up_to_a_limit_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.checks.preflight_files.MOST_BYTES_IN_ALL", 2 << 20)
    for name in "abc":
        (tmp_path / f"pair__{name}__z.txt").write_bytes(bytes(MB))

    with pytest.raises(FieldError, match=r"with pair__c__z\.txt they hold more than 2 MiB"):
        read_files([tmp_path])


@pytest.mark.parametrize("style", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_every_style_are_read(style: int) -> None:
    folder = "/".join(f"{part}" * 20 for part in "abcdef")
    files = [(f"{folder}/pair__a__b.txt", bytes(1_000)), (f"{folder}/node__a.json", b"{}" * 256)]
    files.append(("pair__a__c.txt", b""))

    found = unpack_uploads([("out.tar.gz", tarred(*files, style=style))])

    assert found == [(name.rpartition("/")[2], data) for name, data in files]


def test_names_beyond_ascii_and_very_long_ones_are_read() -> None:
    name = f"out/{'ü' * 150}.txt"
    for style in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert unpack_uploads([("o.tgz", tarred((name, b"x"), style=style))]) == [(name[4:], b"x")]


def test_folders_and_links_are_passed_over() -> None:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, kind in (("out", tarfile.DIRTYPE), ("out/link", tarfile.SYMTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        entry = tarfile.TarInfo(f"out/{FILE[0]}")
        entry.size = len(FILE[1])
        archive.addfile(entry, io.BytesIO(FILE[1]))

    assert unpack_uploads([("out.tgz", body.getvalue())]) == [FILE]


@pytest.mark.parametrize(
    "tar",
    [
        header("pair__a__b.txt", 600)[:300],
        header("pair__a__b.txt", 600) + b"short",
        b"no header at all".ljust(512),
        header("x", 8, tarfile.XHDTYPE) + b"0 size=1".ljust(512, b"\0"),
        header("x", 9, tarfile.XHDTYPE) + b"9 size=-1".ljust(512, b"\0"),
        header("pair__a__b.txt", 0, tarfile.GNUTYPE_SPARSE),
        header("pair__a__b.txt", -1),
    ],
    ids=["cut", "short", "nonsense", "pax", "negative", "sparse", "minus"],
)
def test_a_damaged_tar_is_named(tar: bytes) -> None:
    with pytest.raises(FieldError, match=r"out\.tgz is no \.zip or \.tar\.gz"):
        unpack_uploads([("out.tgz", gzip.compress(tar))])
