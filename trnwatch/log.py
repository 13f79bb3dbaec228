"""Warnings of the reporter: each is logged once per process and never raised."""

import logging

log = logging.getLogger("trnwatch")
_warned: set[str] = set()


def warn_once(text: str, *about: object) -> None:
    """Log a warning the first time it occurs; ``text`` is the format of logging."""
    if text not in _warned:
        _warned.add(text)
        log.warning("trnwatch: " + text, *about)
