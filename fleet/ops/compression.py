"""Gzip decompression in small pieces, so that a caller can stop a decompression bomb early."""

import zlib
from collections.abc import Iterator

GZIP = 16 + zlib.MAX_WBITS
# zlib copies what follows a member, and a body may have many members: feed little.
FEED_BYTES = 16_384
PIECE_BYTES = 1 << 18
# An empty member takes 20 bytes and some microseconds.
MAX_MEMBERS = 50_000


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
