"""Text and JSON as other programs write them: encodings, bare infinities, raw controls."""

import codecs
import re

# The marks of UTF-32 begin with those of UTF-16.
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# A string, closed or not, a number that JSON does not know, or a comma behind the last value.
TOKEN = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|(?<![\w.])[-+]?(?:inf(?:inity)?|nan(?:\(\w{1,8}\))?)(?![\w.])'
    rb"|,(?=\s*[\]}])",
    re.DOTALL | re.IGNORECASE,
)
# In a string: a valid escape, a backslash that begins none, half of a pair, a control character.
PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
WITHIN = re.compile(
    PAIR + rb'|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt]'
    rb"|(?P<slash>\\)|(?P<control>[\x00-\x1f])"
)
# PyTorch up to 2.5 writes an empty description without its quotes.
EMPTY_VALUE = re.compile(rb'("Process Group (?:Description|Name)"\s*:\s*)(?=[,}])')


def utf8(data: bytes) -> bytes:
    """Return text as valid UTF-8 without a mark; what is invalid becomes U+FFFD."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace").encode()
    if len(data) > 1 and 0 in data[:2] and data[:2] != b"\0\0":
        # No mark; the first character of a table or of JSON is ASCII.
        encoding = "utf-16-be" if data[0] == 0 else "utf-16-le"
        return data.decode(encoding, "replace").encode()
    return data if is_utf8(data) else data.decode("utf-8", "replace").encode()


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def strict_json(data: bytes, *, not_finite: bytes = b"null") -> bytes:
    """Return what a lenient writer wrote as JSON; ``not_finite`` replaces inf and nan.

    Control characters and backslashes in strings are escaped, commas behind the last value left
    out. JSON stays as it is.
    """

    def mended(found: re.Match[bytes]) -> bytes:
        token = found[0]
        if token == b",":
            return b""
        if token[:1] != b'"':
            return not_finite
        return WITHIN.sub(_within, token) if WITHIN.search(token) else token

    return EMPTY_VALUE.sub(rb'\1""', TOKEN.sub(mended, data))


def _within(found: re.Match[bytes]) -> bytes:
    if found["half"]:
        return rb"\ufffd"
    if found["slash"]:
        return rb"\\"
    return rb"\u%04x" % found["control"][0] if found["control"] else found[0]
