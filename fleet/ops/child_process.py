"""Run a command that ends when the process that started it does, even if that was killed.

Called as ``python child_process.py <pid of the parent> <command> …``; becomes the command.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def signal_on_parent_exit(parent: int, number: int) -> None:
    """Ask the kernel for a signal when ``parent`` dies; end at once if it is dead already.

    Only Linux can do that; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            sys.exit("The process that started this is gone.")


def main(parent: int, command: list[str]) -> None:
    """Become the command, which is sent SIGTERM at the parent's death."""
    signal_on_parent_exit(parent, signal.SIGTERM)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
