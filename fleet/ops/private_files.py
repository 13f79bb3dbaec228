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
    """What was open to other users of this machine, and what could not be closed."""

    paths: list[Path] = field(default_factory=list)
    refused: list[Path] = field(default_factory=list)

    def exposed(self, name: str) -> bool:
        """Whether other users could read the file or folder of this name until now."""
        return any(path.name == name for path in self.paths)


def make_private(folder: Path) -> PermissionFixes:
    """Make the data folder, or close the one that is there, to everybody but its owner.

    Symbolic links are neither followed nor changed, nor is what belongs to another user. In a
    place that is not trnwatch's alone (``/tmp``, a home folder) only its own files are closed.
    """
    os.umask(OTHERS)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mended = PermissionFixes()
    if _is_shared(folder):
        tops = sorted({path for name in OWN_NAMES for path in folder.glob(name)})
        paths: Iterator[Path] = (path for top in tops for path in _below(top))
    else:
        # The folder first: from then on nobody else can get at what is in it.
        paths = _below(folder.resolve())
    for path in paths:
        _close(path, mended)
    return mended


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Say what is wrong with the data folder, or its disk, where it cannot be used."""
    try:
        yield
    except OSError as error:
        raise ImproperlyConfigured(disk_advice(error, folder)) from error


def write_once(path: Path, text: str) -> None:
    """Write a file that many programs may make at the same moment: one of them wins.

    It appears whole or not at all. An empty one, as a full disk leaves it, is replaced.
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


def _is_shared(folder: Path) -> bool:
    """Whether a folder is for more than trnwatch: sticky, the root, or somebody's home."""
    place = folder.resolve()
    # Unlike Path.home() it raises nothing for a user without a home, as in a container.
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111
    return bool(place.stat().st_mode & stat.S_ISVTX) or place in {home, Path(place.anchor)}


def _below(path: Path) -> Iterator[Path]:
    """Yield a path and, of a real folder, all that is in it; each folder before its content."""
    yield path
    if path.is_symlink() or not path.is_dir():
        return
    try:
        children = sorted(path.iterdir())
    except OSError:
        return
    for child in children:
        yield from _below(child)


def _close(path: Path, mended: PermissionFixes) -> None:
    """Take every right of others from one file or folder, and note it."""
    try:
        told = path.lstat()
        if stat.S_ISLNK(told.st_mode) or not told.st_mode & OTHERS:
            return
        if told.st_uid != os.geteuid():
            mended.refused.append(path)
            return
        path.chmod(stat.S_IMODE(told.st_mode) & ~OTHERS)
        mended.paths.append(path)
    except FileNotFoundError:
        # It was there a moment ago: a database's -wal goes when the last program closes it.
        return
    except OSError:
        mended.refused.append(path)
