"""promtool rule tests: input series, and when an alert fires."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EVERY_S = 15
A_MINUTE = 60 // EVERY_S
ABSENT = "_"
FOUR = ("n0", "n1", "n2", "n3")
N0 = {"node": "n0"}
LLAMA = {"run": "llama"}
CORE, VCPU = "trnwatch_core_utilization_ratio", "trnwatch_node_vcpu_usage_ratio"
ABOVE = 1.02
SHARED = {"trnwatch_node_info", "trnwatch_run_info"}

# Labels distinguish alerts; values follow each other, each for some minutes.
Course = tuple[tuple[float | str, float], ...]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RuleCase:
    """When one alert fires and when not.

    ``quiet`` are the minutes in which it must not fire, ``fires`` those in which it must, with
    ``labels`` in addition to its name. Without the series of ``series_of`` it never fires.
    """

    alert: str
    series_of: str
    series: Mapping[str, Course | str]
    quiet: tuple[float, ...]
    fires: tuple[float, ...]
    labels: Labels = field(default_factory=dict)
    severity: str = "page"

    @property
    def metrics(self) -> set[str]:
        """The metrics of this case alone; info series are shared."""
        return {name.partition("{")[0] for name in self.series} - SHARED

    @property
    def expected(self) -> list[dict[str, Any]]:
        """When its alert fires and when not, as promtool tests."""
        own = {"alertstate": "firing", "rule": self.alert, "severity": self.severity}
        labels = ", ".join(f'{k}="{v}"' for k, v in sorted({**own, **self.labels}.items()))
        fired = [{"labels": f'ALERTS{{alertname="{self.alert}", {labels}}}', "value": 1}]
        return [
            *(self._sample(minute, []) for minute in self.quiet),
            *(self._sample(minute, fired) for minute in self.fires),
        ]

    @property
    def never(self) -> list[dict[str, Any]]:
        """That its alert never fires, as promtool tests."""
        return [self._sample(minute, []) for minute in (*self.quiet, *self.fires)]

    def _sample(self, minute: float, samples: list[dict[str, Any]]) -> dict[str, Any]:
        own = f'alertname="{self.alert}", alertstate="firing", severity="{self.severity}"'
        return {
            "expr": f"ALERTS{{{own}}}",
            "eval_time": f"{round(minute * 60)}s",
            "exp_samples": samples,
        }


def merged_cases(cases: Iterable[RuleCase]) -> list[list[RuleCase]]:
    """Merge cases without common series into one test: fewer runs of promtool."""
    found: list[list[RuleCase]] = []
    for case in sorted(cases, key=lambda each: max(each.quiet)):
        for merged in found:
            taken = set().union(*(each.metrics for each in merged))
            if not taken & case.metrics and case.alert not in {each.alert for each in merged}:
                merged.append(case)
                break
        else:
            found.append([case])
    return found


def series_of(cases: Sequence[RuleCase]) -> dict[str, Any]:
    """Return merged cases as one test of promtool."""
    series = {name: course for case in cases for name, course in case.series.items()}
    return _test(series, [question for case in cases for question in case.expected])


def without_series(cases: Sequence[RuleCase]) -> dict[str, Any]:
    """Return the same cases without their main series: no alert may fire."""
    about = [case.series_of for case in cases]
    series = {
        name: course
        for case in cases
        for name, course in case.series.items()
        if not any(series_of in name for series_of in about)
    }
    return _test(series, [question for case in cases for question in case.never])


def _test(series: Mapping[str, Course | str], questions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": f"{EVERY_S}s",
        "input_series": [
            {"series": name, "values": course if isinstance(course, str) else values(course)}
            for name, course in series.items()
        ],
        "promql_expr_test": questions,
    }


def values(course: Course) -> str:
    """Write values in promtool's short form: each for so many minutes, or absent."""
    runs = []
    for value, minutes in course:
        n = round(minutes * A_MINUTE)
        runs.append(f"stale {ABSENT}x{n - 1}" if value == ABSENT else f"{value}+0x{n - 1}")
    return " ".join(runs)


def rising(*rates: tuple[float, float]) -> str:
    """Write a counter: by so much each second, for so many minutes each."""
    at, runs = 0.0, []
    for per_s, minutes in rates:
        n, by = round(minutes * A_MINUTE), per_s * EVERY_S
        runs.append(f"{at:.9g}+{by:.9g}x{n - 1}")
        at += by * n
    return " ".join(runs)


def always(value: float, minutes: float = 120) -> Course:
    """Return one value for good."""
    return ((value, minutes),)


def nodes(*names: str, run: str = "llama", source: str = "simulated") -> dict[str, Course]:
    """Return nodes that belong to a run, and that run training."""
    kind = f'instance_type="trn2.48xlarge", source="{source}"'
    series_of = {
        f'trnwatch_node_info{{node="{name}", run="{run}", {kind}}}': always(1) for name in names
    }
    info = f'trnwatch_run_info{{run="{run}", phase="training", team="LLM"}}'
    return series_of | ({info: always(1)} if run else {})


def parts(metric: str, label: str, usual: float, n_parts: int, *names: str) -> dict[str, Course]:
    """Return as many parts of each node, all alike."""
    return {
        f'{metric}{{node="{name}", {label}="{part}"}}': always(usual)
        for name in names
        for part in range(n_parts)
    }
