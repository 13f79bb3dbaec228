"""Settings from environment variables: text, numbers, flags, lists, and secrets in files."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from telemetry.errors import whole_number

# A limit or a number of days or seconds: what fits 31 bits, some 68 years of seconds.
LARGEST_SETTING = 2**31 - 1
# ``float`` alone takes signs, exponents, NaN and digits of every script.
DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")


class Environment:
    """The settings of a deployment.

    A value may be in a file instead, as orchestrators provide secrets: ``NAME_FILE`` is its
    path. Setting both is an error.
    """

    def __init__(self, values: Mapping[str, str] = os.environ) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """Return a text; that of a file without surrounding white space."""
        value, path = self._values.get(name, ""), self._values.get(f"{name}_FILE", "")
        if not path:
            return value or default
        if value:
            raise ImproperlyConfigured(f"{name} and {name}_FILE are both set; keep one.")
        try:
            return Path(path).read_text(encoding="utf-8").strip() or default
        except (OSError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(f"{name}_FILE: cannot read {path}: {error}.") from error

    def without_effect(self, former: Mapping[str, str]) -> list[str]:
        """Say of each former setting that is still given what to do instead."""
        given = (
            name for name in former if self._values.get(name) or self._values.get(f"{name}_FILE")
        )
        return [f"{name} has no effect any more: {former[name]}." for name in given]

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return whether a setting is 1."""
        value = self.text(name, str(int(default)))
        if value not in {"0", "1"}:
            raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.")
        return value == "1"

    def whole_number(
        self, name: str, default: int, *, least: int = 0, most: int = LARGEST_SETTING
    ) -> int:
        value = self.text(name, str(default))
        number = whole_number(value, most=most)
        if number is None or number < least:
            raise ImproperlyConfigured(
                f"{name} must be a whole number from {least} to {most}, not {value[:40]!r}."
            )
        return number

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a decimal number within limits."""
        value = self.text(name, f"{default:g}")
        if not DECIMAL.fullmatch(value) or not least <= float(value) <= most:
            raise ImproperlyConfigured(
                f"{name} must be a number from {least:g} to {most:g}, not {value[:40]!r}."
            )
        return float(value)

    def names(self, name: str, default: str = "") -> list[str]:
        """Return a list separated by commas."""
        return [part.strip() for part in self.text(name, default).split(",") if part.strip()]
