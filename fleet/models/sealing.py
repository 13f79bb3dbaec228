"""Sealing: secrets are encrypted at rest, with keys that can be replaced."""

import base64
from collections.abc import Iterable, Iterator
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

SALT, PURPOSE = b"trnwatch", b"secrets at rest"
KEY_BYTES = 32


class SealedError(ValueError):
    """A secret that no key opens; the message says which setting to change."""


def seal(text: str) -> str:
    """Seal a text with the newest key; the result is never the same twice."""
    return _locks(_keys()).encrypt(text.encode()).decode("ascii")


def unseal(sealed: str) -> str:
    """Open what was sealed with any of the keys.

    Raises SealedError where none fits, or it was damaged.
    """
    try:
        return _locks(_keys()).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise SealedError(
            "it is sealed with a key that is not set: add that one to "
            "TRNWATCH_SEALING_KEY_FALLBACKS, or TRNWATCH_SECRET_KEY_FALLBACKS"
        ) from error


def _keys() -> tuple[str, ...]:
    """Return the keys, newest first; Django's own keys come last."""
    own = (settings.SEALING_KEY, *settings.SEALING_KEY_FALLBACKS)
    every = (*own, settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return tuple(dict.fromkeys(key for key in every if key))


@lru_cache(maxsize=8)
def _locks(keys: tuple[str, ...]) -> MultiFernet:
    derived = _derived(keys, PURPOSE, KEY_BYTES)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(each)) for each in derived])


def _derived(keys: Iterable[str], purpose: bytes, n_bytes: int) -> Iterator[bytes]:
    """Derive a key for one purpose from each; any text can be a key."""
    for key in keys:
        yield HKDF(SHA256(), n_bytes, SALT, purpose).derive(key.encode())


def derived_keys(purpose: bytes, n_bytes: int) -> Iterator[bytes]:
    """Derive keys for another purpose from those that seal, the newest first."""
    return _derived(_keys(), purpose, n_bytes)
