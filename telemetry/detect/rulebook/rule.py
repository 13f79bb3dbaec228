"""What a rule is made of: words for people, the limits detection uses, its stand-in in PromQL."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["page", "warn"]
Subject = Literal["run", "node", "fleet", "budget"]
# A scrape or two may fail: series vanish, and nothing is mended by that.
KEEP_S = 120.0
LIMIT = re.compile(r"<(\w+)>")


@dataclass(frozen=True, slots=True)
class Query:
    """What Prometheus asks in place of a rule.

    In ``expr`` and ``says``, `<name>` stands for the rule's limit of that name. ``says`` goes on
    with the sentence that the rule's help begins, in the templates of Prometheus. The alert is
    pending for ``for_s`` seconds, and outlives the last evidence by ``keep_s``: each a figure,
    or the name of a limit. ``severity`` is the rule's own where it is not given.
    """

    expr: str
    says: str
    for_s: float | str = 0.0
    keep_s: float | str = KEEP_S
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that may be wrong, in words for people; ``subject`` is whom an alert is about.

    ``limits`` are the figures that decide, by names that carry their unit; detection and PromQL
    both take them from here. ``falls_short`` says what the queries do not see that detection
    does; without ``queries``, why there are none.
    """

    name: str
    title: str
    severity: Severity
    subject: Subject
    help: str
    limits: Mapping[str, float] = field(default_factory=dict)
    queries: tuple[Query, ...] = ()
    falls_short: str = ""

    @property
    def runbook(self) -> str:
        """Path of the page that says what to do."""
        return f"docs/runbooks/{self.name}.md"

    def filled(self, text: str) -> str:
        """Put the rule's limits into a text; a name that is no limit of it is an error."""
        return LIMIT.sub(lambda found: f"{self.limits[found[1]]:.12g}", text)

    def seconds(self, given: float | str) -> float:
        """Return a duration: a figure, or the limit of that name."""
        return self.limits[given] if isinstance(given, str) else given
