"""Gzip unpacked in small pieces, so that a caller can stop before a bomb costs anything."""

import zlib
from collections.abc import Iterator

GZIP = 16 + zlib.MAX_WBITS
# A body may be many gzip members in a row; what follows a member is copied, so feed little.
FEED_BYTES = 16_384
PIECE_BYTES = 1 << 18
# An empty member takes 20 bytes and some microseconds.
MOST_MEMBERS = 50_000


def gunzip_pieces(packed: bytes) -> Iterator[bytes]:
    """Yield what gzip members in a row hold, at most ``PIECE_BYTES`` at a time.

    Raises
    ------
    zlib.error
        Where it is not gzip, or damaged.
    EOFError
        Where it ends early.
    ValueError
        Where it has more than ``MOST_MEMBERS`` members.
    """
    view, start, n_members = memoryview(packed), 0, 0
    while start < len(view):
        n_members += 1
        if n_members > MOST_MEMBERS:
            raise ValueError(f"it has more than {MOST_MEMBERS:,} gzip members")
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
