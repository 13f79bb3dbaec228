"""Run a command that ends when its parent ends, even if the parent was killed.

Called as ``python child_process.py <pid of the parent> <command> …``; becomes the command.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def signal_on_parent_exit(parent: int, number: int) -> None:
    """Let the kernel send a signal when ``parent`` ends; exit if it has ended already.

    Linux only; does nothing on other systems.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            sys.exit("The parent process has ended.")


def main(parent: int, command: list[str]) -> None:
    """Replace this process by the command, which gets SIGTERM when the parent ends."""
    signal_on_parent_exit(parent, signal.SIGTERM)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
