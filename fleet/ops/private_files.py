"""Keep the data folder to its owner: files 0600, folders 0700, also those of an older release."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from fleet.ops.outages import disk_advice

OTHERS = 0o077
# What trnwatch itself writes into its data folder.
OWN_NAMES = (
    "beat-schedule*",
    "log",
    "processes.json",
    "redis",
    "secret_key",
    "static",
    "static.mark",
    "trnwatch.sqlite3*",
    "up.lock",
)


@dataclass(frozen=True)
class PermissionFixes:
    """Paths that were readable by other users, and those that could not be changed."""

    paths: list[Path] = field(default_factory=list)
    refused: list[Path] = field(default_factory=list)

    def was_exposed(self, name: str) -> bool:
        """Whether other users could read a file or folder of this name until now."""
        return any(path.name == name for path in self.paths)


def make_private(folder: Path, *, user: int | None = None) -> PermissionFixes:
    """Create the data folder, or make the existing one private to its owner.

    Symbolic links are neither followed nor changed, nor are files of other users. In a shared
    folder (``/tmp``, a home folder) only trnwatch's own files are changed. ``user`` is the owner's
    number, by default that of this process.
    """
    user = os.geteuid() if user is None else user
    os.umask(OTHERS)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fixes = PermissionFixes()
    # Path.home() raises for a user without a home, as in a container.
    place, home = folder.resolve(), Path(os.path.expanduser("~")).resolve()  # noqa: PTH111
    if place.stat().st_mode & stat.S_ISVTX or place in {home, Path(place.anchor)}:
        tops = sorted({path for name in OWN_NAMES for path in folder.glob(name)})
        paths: Iterator[Path] = (path for top in tops for path in _below(top))
    else:
        # The folder first: then other users cannot reach what is in it.
        paths = _below(place)
    for path in paths:
        try:
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode) or not status.st_mode & OTHERS:
                continue
            if status.st_uid != user:
                fixes.refused.append(path)
                continue
            path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
            fixes.paths.append(path)
        except FileNotFoundError:
            # The -wal of a database disappears when the last program closes it.
            continue
        except OSError:
            fixes.refused.append(path)
    return fixes


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the block into advice about the data folder or its disk."""
    try:
        yield
    except OSError as error:
        raise ImproperlyConfigured(disk_advice(error, folder)) from error


def write_once(path: Path, text: str) -> None:
    """Write a file that several programs may create at the same time: the first one wins.

    The file appears complete or not at all. An empty file, left by a full disk, is replaced.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text)
        if path.exists() and not path.stat().st_size:
            path.unlink()
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)


def _below(path: Path) -> Iterator[Path]:
    """Yield a path and, if it is a real folder, all paths below it, folders first."""
    yield path
    if path.is_symlink() or not path.is_dir():
        return
    try:
        children = sorted(path.iterdir())
    except OSError:
        return
    for child in children:
        yield from _below(child)
