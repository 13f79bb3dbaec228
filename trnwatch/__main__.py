"""``python -m trnwatch train.py …`` runs a training script and reports its steps.

Steps, waits and collectives come from the trace of the Neuron runtime, or on GPU nodes from NCCL
Inspector's records; the script stays unchanged.
"""

import runpy
import sys
from pathlib import Path

from trnwatch.reporter import Reporter


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m trnwatch SCRIPT [ARGUMENT ...]")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    with Reporter.from_env(finds_steps=True):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
