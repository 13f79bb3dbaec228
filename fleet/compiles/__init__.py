"""The compile cache: what was found, compiled or failed, why, what changed, and what it cost."""

from fleet.compiles.keeping import keep_compiles
from fleet.compiles.summing import Compiles, covered_s, saying_whether_compiled, summed_up

__all__ = ["Compiles", "covered_s", "keep_compiles", "saying_whether_compiled", "summed_up"]
