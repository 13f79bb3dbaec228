"""Report the steps of a training job to trnwatch, with two lines of code.

The first is ``reporter = Reporter.from_env()``, the second ``with reporter.step() as step:``.
"""

from trnwatch.reporter import Reporter
from trnwatch.steps import Step
from trnwatch.version import VERSION

__all__ = ["VERSION", "Reporter", "Step"]
