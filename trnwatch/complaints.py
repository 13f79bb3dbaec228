"""What goes wrong with reporting: said once in the log, never raised."""

import logging

log = logging.getLogger("trnwatch")
_said: set[str] = set()


def complain(text: str, *about: object) -> None:
    """Log a trouble the first time it occurs."""
    if text not in _said:
        _said.add(text)
        log.warning("trnwatch: " + text, *about)
