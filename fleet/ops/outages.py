"""A database or a disk that cannot be used: how to recognise it, and what to tell people."""

import errno
import logging
from pathlib import Path

from django.db import DatabaseError, InterfaceError, OperationalError, connection

# What SQLite says of a file that is no longer a database, or only in part.
DAMAGE = ("malformed", "not a database")
# SQLite counts these among its operational errors; they are ours.
STATEMENT_ERRORS = ("no such table", "no such column", "syntax error")
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite's file is damaged."""
    return isinstance(error, DatabaseError) and any(word in str(error) for word in DAMAGE)


def is_outage(error: BaseException | None) -> bool:
    """Whether the database does not answer, rather than refuse a statement of ours."""
    if is_damage(error):
        return True
    is_away = isinstance(error, (OperationalError, InterfaceError))
    return is_away and not any(word in str(error) for word in STATEMENT_ERRORS)


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def database_advice(error: BaseException) -> str:
    """Say what is wrong with the database, and what to do."""
    path = Path(str(connection.settings_dict["NAME"]))
    if is_damage(error):
        return (
            f"The database {path} is damaged ({first_line(error)}). Restore the newest backup "
            "over it: `.venv/bin/python manage.py restore FILE --replace`. Without a backup, move "
            f"{path.name}, {path.name}-wal and {path.name}-shm out of {path.parent}: the next "
            "start begins with an empty database."
        )
    if connection.vendor == "sqlite":
        return (
            f"The database {path} cannot be used: {first_line(error)}. See that its folder can be "
            "written and its disk is not full, then start again."
        )
    return f"The database cannot be used; see DATABASE_URL. It says: {first_line(error)}"


def disk_advice(error: OSError, folder: Path) -> str:
    """Say what is wrong with a folder or its disk, and what to do."""
    place = error.filename or folder
    if error.errno in NO_ROOM:
        return f"The disk is full: {place} cannot be written. Free some space and start again."
    if error.errno in UNWRITABLE:
        return (
            f"{place} cannot be used: {error.strerror}. Make {folder} writable for the user who "
            "runs trnwatch, or name another folder by TRNWATCH_DATA_DIR."
        )
    return f"{place} cannot be used: {error.strerror or error}."


def is_disk_error(error: OSError) -> bool:
    """Whether a full disk or a folder that cannot be written is behind an error."""
    return error.errno in NO_ROOM | UNWRITABLE


class BriefOutages(logging.Filter):
    """Log an outage of the database in one line: a traceback per request would fill the disk."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Put the reason into the message, in place of the traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and is_outage(error):
            record.msg, record.args = f"{record.getMessage()}: {first_line(error)}", None
            record.exc_info = record.exc_text = None
        return True
