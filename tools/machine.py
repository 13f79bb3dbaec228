"""Check that the programs the tests need are installed; as root on Debian, install them."""

import os
import shutil
import subprocess
import sys

from common import CHROMIUMS
from postgres import postgres_program

# Debian package: (what of it must be there, what for)
WANTED = {
    "chromium-headless-shell": (CHROMIUMS, "the tests in a browser"),
    "prometheus": (("prometheus",), "the tests that scrape /metrics"),
    "prometheus-alertmanager": (("prometheus-alertmanager",), "the tests that page through it"),
    "victoria-metrics": (("victoria-metrics",), "the tests of long-term history"),
    "poppler-utils": (("pdftotext",), "the test that reads a printed trial back"),
    "build-essential": (("cc",), "the tests of the Neuron runtime's trace"),
    "curl": (("curl",), "the examples of docs/api.md"),
    "postgresql": (("initdb",), "the tests on PostgreSQL"),
}


def missing() -> dict[str, str]:
    """Return the Debian packages that are not here, and what each is for."""
    return {
        package: purpose
        for package, (programs, purpose) in WANTED.items()
        if not any(shutil.which(name) or postgres_program(name) for name in programs)
    }


def install(packages: list[str]) -> None:
    """Install Debian packages; print errors, then check again."""
    print(f"Installing {' '.join(packages)} by apt-get ...", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0"]
    subprocess.run([*quiet, "update"], env=env, check=False)
    command = [*quiet, "install", "-y", "--no-install-recommends", *packages]
    subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL)


def main() -> None:
    """Install missing programs, or print the remedy; in CI none may be missing."""
    if (lacking := missing()) and os.geteuid() == 0 and shutil.which("apt-get"):
        install(list(lacking))
    lacking = missing()
    for package, purpose in lacking.items():
        print(f"Missing on this machine: {package}, for {purpose}.", flush=True)
    if lacking:
        packages = " ".join(lacking)
        print(f"On Debian or Ubuntu: sudo apt-get install {packages}", flush=True)
        if os.environ.get("CI"):
            sys.exit("In CI nothing may be missing.")
        print("The tests that need it are left out.", flush=True)


if __name__ == "__main__":
    main()
