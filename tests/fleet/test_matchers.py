"""Matchers: parsed, refused with a fix, written back, applied to alerts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.alerts.matchers import (
    FIELDS,
    OPS,
    Matcher,
    matchers_of,
    matches,
    parse_matchers,
    written,
)
from fleet.models import Alert, Node, Run
from telemetry.errors import FieldError


@pytest.fixture
def alert(run: Run, limping: Node) -> Alert:
    return Alert(
        rule="allreduce_share",
        cause="slow_core",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=run,
        node=limping,
    )


def test_a_text_is_read() -> None:
    assert parse_matchers('rule=allreduce_share team=~"blue|green", node!=x') == (
        Matcher("rule", "=", "allreduce_share"),
        Matcher("team", "=~", "blue|green"),
        Matcher("node", "!=", "x"),
    )
    assert parse_matchers("  ") == ()
    assert parse_matchers('team=""') == (Matcher("team", "=", ""),)


@given(
    st.lists(
        st.builds(
            Matcher,
            st.sampled_from(FIELDS),
            st.sampled_from(OPS[:2]),
            st.text(st.characters(exclude_characters='"'), max_size=20),
        )
    )
)
def test_what_is_written_reads_the_same(matchers: list[Matcher]) -> None:
    assert parse_matchers(written(matchers)) == tuple(matchers)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rule", "'rule' is not a matcher. Write field=value"),
        ("color=red", "'color' is not a field. Use one of rule, cause"),
        ('node="a"run=b', "put a space before 'run=b'"),
        ("node=~(", "node: the pattern '\\(' is invalid"),
        ("node=~(a+)+b", "node: the pattern '\\(a\\+\\)\\+b' is too complex"),
        ("node=~.*.*.*.*x", "too complex"),
        ("run=~(?=a)", "too complex"),
        ("run=~" + "a" * 201, "longer than 200"),
    ],
)
def test_what_is_no_matcher_is_refused_with_a_remedy(text: str, shown: str) -> None:
    with pytest.raises(FieldError, match=shown):
        parse_matchers(text)


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("", True),
        ("rule=allreduce_share cause=slow_core severity=page", True),
        ("run=llama node=limping team=LLM subject=run:llama drill=no", True),
        ("run=lla", False),
        ("run=~lla", False),
        ("run=~lla.*", True),
        ("node!~limp.*|steady", False),
        ("node!=steady", True),
        ("run=llama drill=yes", False),
    ],
)
def test_matchers_are_held_against_an_alert(alert: Alert, text: str, *, is_meant: bool) -> None:
    assert matches(parse_matchers(text), alert) is is_meant


def test_a_node_that_no_one_knows_is_named_by_its_subject(db: None) -> None:
    alert = Alert(rule="node_silent", severity=Alert.Severity.PAGE, subject="node:ghost")

    assert matches(parse_matchers('node=ghost run=""'), alert)


def test_a_group_is_silenced_as_a_whole_and_routed_by_each_of_its_runs(
    alert: Alert, run: Run
) -> None:
    Run.objects.filter(pk=run.pk).update(team="LLM")
    other = Run.objects.create(
        **{f.attname: getattr(run, f.attname) for f in Run._meta.concrete_fields if f.name != "id"}
        | {"name": "other.1", "team": "vision"}
    )
    alert.node, alert.evidence = None, {"runs": [run.name, other.name], "nodes": ["a", "b"]}
    for text, by_one, by_all in (
        ("run=llama", True, False),
        ("run=other.1 team=vision", True, False),
        ("run=~llama|other.1", True, True),
        ("run!=llama", True, False),
        ("run=third", False, False),
        ("node=a", True, False),
        ("node=~[ab]", True, True),
        ("team=~LLM|vision", True, True),
    ):
        parsed = parse_matchers(text)
        assert (matches(parsed, alert), matches(parsed, alert, whole=True)) == (by_one, by_all)
    own = matchers_of(alert)
    assert written(own) == r"rule=allreduce_share run=~llama|other\.1"
    assert matches(parse_matchers(written(own)), alert, whole=True)
    alert.evidence = {"runs": [f"run-{i}" for i in range(30)]}
    assert written(matchers_of(alert)) == "rule=allreduce_share cause=slow_core"
