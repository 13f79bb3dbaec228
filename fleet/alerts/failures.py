"""Rules that raise an exception: each is noted, and stops no other."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import msgspec
from django.db import DatabaseError
from redis.exceptions import RedisError

from telemetry.detect import SLOWDOWNS
from telemetry.detect.stopped import SILENT
from telemetry.store.hot import HotStore

log = logging.getLogger(__name__)

ALL_RULES = "all rules"
# What could not be evaluated is shown for so long.
FAILURES, SHOW_S, LOG_EVERY_S, LONGEST_ERROR = "watch:failures", 15, 60.0, 200
_LOGGED_S: dict[tuple[str, str, type[Exception]], float] = {}


class RuleFailure(msgspec.Struct, frozen=True):
    """Rules that raised an exception; without a run, of all runs and nodes."""

    rule: str
    run: str
    error: str
    nodes: tuple[str, ...] = ()

    def covers(self, rule: str, subject: str) -> bool:
        """Whether a rule and subject could not be evaluated."""
        of_rule = {"step_slow": SLOWDOWNS, "hang": ("hang", SILENT)}
        if self.rule != ALL_RULES and rule not in of_rule.get(self.rule, (self.rule,)):
            return False
        kind, _, name = subject.partition(":")
        return not self.run or name in ((self.run,) if kind == "run" else self.nodes)


@dataclass
class Guard:
    """Suppresses and collects the exceptions of rules, so that the others are evaluated.

    Without its store nothing can be evaluated: those exceptions pass.
    """

    failures: list[RuleFailure] = field(default_factory=list)

    @contextmanager
    def __call__(self, run: str, nodes: tuple[str, ...], rule: str) -> Iterator[None]:
        try:
            yield
        except (DatabaseError, RedisError):
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
            self.failures.append(RuleFailure(rule, run, text, nodes))
            # Each second brings the same one: its traceback is logged once a minute and process.
            key, at_s = (run, rule, type(error)), time.monotonic()
            if at_s - _LOGGED_S.get(key, -math.inf) > LOG_EVERY_S:
                _LOGGED_S[key] = at_s
                log.exception("could not evaluate %s of %s", rule, run or "all runs")

    def note(self, hot: HotStore) -> None:
        """Count the failures, and keep them for the page of rules."""
        if self.failures:
            hot.count("rules_failed", len(self.failures))
            hot.execute("SET", FAILURES, msgspec.json.encode(self.failures), "EX", SHOW_S)


def unguarded(_run: str, _nodes: tuple[str, ...], _rule: str) -> AbstractContextManager[None]:
    """Let the exceptions of rules pass."""
    return nullcontext()


def rule_failures(hot: HotStore) -> list[RuleFailure]:
    """Read what could not be evaluated in the last seconds."""
    return msgspec.json.decode(hot.execute("GET", FAILURES) or b"[]", type=list[RuleFailure])
