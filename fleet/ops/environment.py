"""Reading settings from the environment: text, numbers, yes or no, lists, and secrets in files."""

import os
from collections.abc import Mapping
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


class Environment:
    """What a deployment chose, by name.

    A value may lie in a file instead, as orchestrators hand secrets over: ``NAME_FILE`` says
    where. Both at once are refused, so that nobody wonders which one holds.
    """

    def __init__(self, values: Mapping[str, str] = os.environ) -> None:
        """Read from ``values``, the process's own environment unless given."""
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """Return a setting as it is written, without the line break a file may end with."""
        value, path = self._values.get(name, ""), self._values.get(f"{name}_FILE", "")
        if not path:
            return value or default
        if value:
            raise ImproperlyConfigured(f"{name} and {name}_FILE are both set; keep one.")
        try:
            return Path(path).read_text(encoding="utf-8").strip() or default
        except (OSError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(f"{name}_FILE: cannot read {path}: {error}.") from error

    def flag(self, name: str) -> bool:
        """Return a setting that is on (1) or off (0, or not set)."""
        value = self.text(name, "0")
        if value not in {"0", "1"}:
            raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.")
        return value == "1"

    def whole_number(self, name: str, default: int) -> int:
        """Return a setting that counts something."""
        value = self.text(name, str(default))
        if not value.isdecimal():
            raise ImproperlyConfigured(f"{name} must be a whole number, not {value!r}.")
        return int(value)

    def names(self, name: str, default: str = "") -> list[str]:
        """Return a setting that lists something, by comma."""
        return [part.strip() for part in self.text(name, default).split(",") if part.strip()]
