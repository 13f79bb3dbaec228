"""Decompression in small pieces, so that a caller can stop a decompression bomb early."""

import zlib
from collections.abc import Callable, Iterator, Mapping

import zstandard

GZIP = 16 + zlib.MAX_WBITS
# zlib copies what follows a member, and a body may have many members: feed little.
FEED_BYTES = 16_384
PIECE_BYTES = 1 << 18
# An empty member takes 20 bytes and some microseconds.
MAX_MEMBERS = 50_000
# A block of four bytes may unpack to 128 KiB (RFC 8878): this many bytes to 4 MiB.
FEED_ZSTD_BYTES = 128
# What a decoder of this content coding has to support, and may limit frames to (RFC 9659).
MAX_WINDOW_BYTES = 8 << 20


def gunzip_pieces(packed: bytes) -> Iterator[bytes]:
    """Yield the content of consecutive gzip members, at most ``PIECE_BYTES`` at a time.

    Raises
    ------
    zlib.error
        If it is not gzip, or damaged.
    EOFError
        If it is truncated.
    ValueError
        If it has more than ``MAX_MEMBERS`` members.
    """
    view, start, n_members = memoryview(packed), 0, 0
    while start < len(view):
        n_members += 1
        if n_members > MAX_MEMBERS:
            raise ValueError(f"it has more than {MAX_MEMBERS:,} gzip members")
        unpacker = zlib.decompressobj(GZIP)
        while not unpacker.eof:
            fed = view[start : start + FEED_BYTES]
            piece = unpacker.decompress(fed, PIECE_BYTES)
            n_used = len(fed) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
            if not piece and not n_used:
                raise EOFError("it ends early")
            start += n_used
            if piece:
                yield piece


def unzstd_pieces(packed: bytes) -> Iterator[bytes]:
    """Yield the content of consecutive Zstandard frames, at most some megabytes at a time.

    Raises
    ------
    zstandard.ZstdError
        If it is not Zstandard, damaged, or needs a larger window.
    EOFError
        If it is truncated.
    ValueError
        If it has more than ``MAX_MEMBERS`` frames.
    """
    view, start, n_frames = memoryview(packed), 0, 0
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    while start < len(view):
        n_frames += 1
        if n_frames > MAX_MEMBERS:
            raise ValueError(f"it has more than {MAX_MEMBERS:,} Zstandard frames")
        unpacker = decompressor.decompressobj()
        while not unpacker.eof:
            fed = view[start : start + FEED_ZSTD_BYTES]
            if not fed:
                raise EOFError("it ends early")
            piece = unpacker.decompress(fed)
            start += len(fed) - len(unpacker.unused_data)
            if piece:
                yield piece


def unzstd_whole(packed: bytes, *, max_bytes: int) -> bytes | None:
    """Return the content of one frame that tells its size, as agents send it; None otherwise.

    It takes a fraction of the time of ``unzstd_pieces``.
    """
    try:
        if not 0 < zstandard.frame_content_size(packed) <= max_bytes:
            return None
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        return decompressor.decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError:
        return None


# By content coding, what unpacks it.
UNPACKERS: Mapping[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": gunzip_pieces,
    "x-gzip": gunzip_pieces,
    "zstd": unzstd_pieces,
}
