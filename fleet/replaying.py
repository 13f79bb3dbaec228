"""Watching what was recorded: every run through the eyes and the alerts of the live fleet."""

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db.models import Q

from fleet.alerting import Subject, reconcile
from fleet.models import Alert, Run
from fleet.watching import judge, lost_nodes, rosters, sight_of, watched
from telemetry.detect import Recall
from telemetry.store.source import Source


class Replay:
    """Some runs of a source that is read at one second after the other.

    The database is asked only when something burns or is about to: a quiet second costs what
    detection costs, and no more.
    """

    def __init__(self, source: Source, runs: Sequence[Run]) -> None:
        self._source = source
        self._runs = runs
        self._rosters = rosters(runs)
        self._recall = Recall()
        self.open_rules = self._open_rules()

    def look(self, second: int) -> list[Alert]:
        """Judge everything at a second, and reconcile the alerts; return the changed."""
        runs = [run for run in self._runs if run.finished_at is None]
        rosters = {run: self._rosters[run.pk] for run in runs}
        sights = [sight_of(self._source, run, rosters[run], now_s=second) for run in runs]
        lost = lost_nodes(self.open_rules)
        expected = lost | {name for roster in rosters.values() for name in roster.nodes}
        seen = {n: tick for n, tick in self._source.last_seen().items() if n in expected}
        findings = judge(
            sights,
            seen,
            now_s=second,
            open_rules=self.open_rules,
            lost=lost,
            recall=self._recall,
        )
        if not findings and not self.open_rules:
            return []
        could = watched(sights, seen, self.open_rules, now_s=second)
        changed = reconcile(findings, watched=could, now=datetime.fromtimestamp(second, UTC))
        self.open_rules = self._open_rules()
        return changed

    def _open_rules(self) -> set[Subject]:
        """Return the open alerts of these runs: others may be replayed beside them."""
        ours = Q(run__in=self._runs) | Q(run=None, node=None)
        return set(Alert.objects.open().filter(ours).values_list("rule", "subject"))
