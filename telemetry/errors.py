"""The error of unusable input, and a check that several inputs share."""

import re

CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FieldError(ValueError):
    """Unusable input: ``field`` is what to change, ``message`` says how."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def inside(self, place: str) -> "FieldError":
        """Return the same error for a field of a larger structure."""
        return FieldError(f"{place}.{self.field}", self.message)


def check_line(field: str, text: str, *, most: int) -> None:
    """Refuse a text that is longer than ``most`` characters, or not one line."""
    if len(text.strip()) > most:
        raise FieldError(field, f"use at most {most} characters")
    if CONTROL.search(text):
        raise FieldError(field, "use no control characters, not even line breaks")
