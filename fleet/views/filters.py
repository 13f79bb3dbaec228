"""What the filters of lists share: they live in the address, and nowhere else."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Self

from django.utils.http import urlencode

LONGEST = 100


class Filter:
    """A filter whose fields, all of them texts, are the parameters of an address.

    To be inherited by dataclasses; a field that is empty keeps everything.
    """

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Read the filter from an address."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: query.get(name, "").strip()[:LONGEST] for name in names})

    @property
    def query(self) -> str:
        """Return the filter as an address holds it; empty where it keeps everything."""
        given = asdict(self)  # type: ignore[call-overload]
        return urlencode({name: value for name, value in given.items() if value})

    @property
    def words(self) -> str:
        """Return the filter as a person reads it: state firing, run llama."""
        given = asdict(self)  # type: ignore[call-overload]
        return ", ".join(f"{name} {value}" for name, value in given.items() if value)


def with_page(query: str, number: int) -> str:
    """Return a filter's query along with the page that is read; the first goes without saying."""
    return "&".join(filter(None, (query, f"page={number}" if number > 1 else "")))
