"""A report as a template and its numbers; its text is written only when it is read."""

from dataclasses import dataclass

import msgspec
import numpy as np

from telemetry.blocks import FloatArray

# The place of a number in a template.
HOLE = "\x7f"


@dataclass(frozen=True, slots=True)
class TemplateReport:
    template: str
    numbers: FloatArray

    def __bytes__(self) -> bytes:
        """Return the report as text; 5.0 becomes 5."""
        exact = self.numbers.astype(object)
        is_whole = np.trunc(self.numbers) == self.numbers
        exact[is_whole] = self.numbers[is_whole].astype(np.int64)
        parts = self.template.encode().split(HOLE.encode())
        words = msgspec.json.encode(exact.tolist())[1:-1].split(b",") if len(exact) else []
        text = [b""] * (len(parts) + len(words))
        text[::2], text[1::2] = parts, words
        return b"".join(text)

    def packed(self) -> bytes:
        """Return it for ``text_of``, in a fraction of the time that its text takes."""
        return msgspec.msgpack.encode((self.template, self.numbers.astype("<f8").tobytes()))


def text_of(packed: bytes) -> bytes:
    """Return the text of a packed report; a text itself begins with a brace."""
    if packed.startswith(b"{"):
        return packed
    template, numbers = msgspec.msgpack.decode(packed, type=tuple[str, bytes])
    return bytes(TemplateReport(template, np.frombuffer(numbers, "<f8")))
