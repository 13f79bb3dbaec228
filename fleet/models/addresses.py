"""Addresses of pages: a list of hundreds asks for the same ones every second."""

from functools import lru_cache

from django.urls import reverse


@lru_cache(maxsize=20_000)
def address(page: str, key: str | int) -> str:
    """Return the address of one thing's page, looked up once: addresses do not change."""
    return reverse(page, args=[key])
