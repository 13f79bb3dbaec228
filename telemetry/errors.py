"""The error of unusable input, and checks that several inputs share."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

# What SQLite and PostgreSQL keep in an integer, and so the largest key of a row.
LARGEST_KEY = 2**63 - 1
# Year 5138: every Unix second of this age and a date for each.
LARGEST_SECOND = 10**11
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FieldError(ValueError):
    """Unusable input: ``field`` is what to change, ``message`` says how."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Name the fields of errors as those of a larger structure."""
    try:
        yield
    except FieldError as error:
        raise FieldError(f"{place}.{error.field}", error.message) from error


def whole_number(text: str | bytes, *, most: int) -> int | None:
    """Read ASCII digits from outside as a number from 0 to ``most``; None for anything else.

    ``int`` alone takes digits of every script, signs and spaces, and raises ValueError from 4,301
    digits on.

    >>> whole_number("17", most=99), whole_number("100", most=99), whole_number("-1", most=99)
    (17, None, None)
    """
    if len(text) > len(str(most)) or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= most else None


def check_line(field: str, text: str, *, most: int) -> None:
    """Refuse a text that is longer than ``most`` characters, or not one line."""
    if len(text.strip()) > most:
        raise FieldError(field, f"use at most {most} characters")
    if CONTROL.search(text):
        raise FieldError(field, "use no control characters, not even line breaks")
