"""URLs of pages."""

from functools import lru_cache

from django.urls import reverse


@lru_cache(maxsize=20_000)
def address(page: str, key: str | int) -> str:
    """Return the URL of an object; cached, because pages list hundreds of them every second."""
    return reverse(page, args=[key])
