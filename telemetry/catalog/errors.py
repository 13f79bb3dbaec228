"""What goes wrong when something is asked of the catalogue that it doesn't hold."""

from collections.abc import Collection
from difflib import get_close_matches


class CatalogError(ValueError):
    """A name or figure that the catalogue can't serve: says the field, the value, the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        """Keep the field beside the message."""
        super().__init__(f"{field}: {value!r} {remedy}")
        self.field = field


def unknown(field: str, value: str, known: Collection[str]) -> CatalogError:
    """Return the error for a name that nothing has, with the nearest names that exist."""
    close = get_close_matches(value.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return CatalogError(field, value, f"is not known; {hint}known are {', '.join(sorted(known))}")
