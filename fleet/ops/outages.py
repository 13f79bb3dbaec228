"""Failures of database and disk: how to recognise them, and advice for the operator."""

import errno
import logging
from pathlib import Path

from django.db import DatabaseError, InterfaceError, OperationalError, connection

# Messages of SQLite for a damaged file.
DAMAGE = ("malformed", "not a database")
# SQLite reports these as operational errors, but they are errors in our statements.
STATEMENT_ERRORS = ("no such table", "no such column", "syntax error")
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def is_damage(error: BaseException | None) -> bool:
    return isinstance(error, DatabaseError) and any(word in str(error) for word in DAMAGE)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether SQLite or PostgreSQL reports a full disk."""
    words = ("disk is full", "No space left on device")
    return isinstance(error, DatabaseError) and any(word in str(error) for word in words)


def is_outage(error: BaseException | None) -> bool:
    """Whether the database is unreachable or damaged; a refused statement is neither."""
    if is_damage(error):
        return True
    is_unreachable = isinstance(error, (OperationalError, InterfaceError))
    return is_unreachable and not any(word in str(error) for word in STATEMENT_ERRORS)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def database_advice(error: BaseException) -> str:
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
            f"The database {path} cannot be used: {first_line(error)}. Make sure that its "
            "folder is writable and its disk is not full, then start again."
        )
    return f"The database cannot be used; see DATABASE_URL. It says: {first_line(error)}"


def disk_advice(error: OSError, folder: Path) -> str:
    path = error.filename or folder
    if error.errno in NO_ROOM:
        return f"The disk is full: {path} cannot be written. Free some space and start again."
    if error.errno in UNWRITABLE:
        return (
            f"{path} cannot be used: {error.strerror}. Make {folder} writable for the user who "
            "runs trnwatch, or name another folder by TRNWATCH_DATA_DIR."
        )
    return f"{path} cannot be used: {error.strerror or error}."


def is_disk_error(error: OSError) -> bool:
    """Whether an error comes from a full disk or a folder that is not writable."""
    return error.errno in NO_ROOM | UNWRITABLE


# The audit log has a line about these; Django's own have a traceback, and are not limited.
AUDITED = (401, 403, 429)


class BriefOutages(logging.Filter):
    """Log an outage of the database in one line: a traceback per request would fill the disk."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the traceback by its last line, and leave out refused requests."""
        if getattr(record, "status_code", 0) in AUDITED:
            return False
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and is_outage(error):
            record.msg, record.args = f"{record.getMessage()}: {first_line(error)}", None
            record.exc_info = record.exc_text = None
        return True
