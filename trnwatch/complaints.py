"""What goes wrong with reporting: said once in the log, never raised."""

import logging

log = logging.getLogger("trnwatch")
_warned: set[str] = set()


def warn_once(text: str, *about: object) -> None:
    """Log a trouble the first time it occurs."""
    if text not in _warned:
        _warned.add(text)
        log.warning("trnwatch: " + text, *about)
