"""The rule file is readable YAML."""

import re

import yaml

from fleet.metrics.rules import rule_file


def test_queries_of_several_lines_are_blocks_and_lines_stay_short() -> None:
    text = rule_file()

    groups = yaml.safe_load(text)["groups"]
    queries = [rule["expr"] for group in groups for rule in group["rules"]]
    assert text.count("expr: |-") == sum("\n" in query for query in queries) > 10
    # Nothing can break a sentence or a regular expression.
    lines = [line for line in text.splitlines() if not re.search("description:|[!=]~", line)]
    assert max(map(len, lines)) < 150


def test_keys_keep_the_order_in_which_prometheus_documents_them() -> None:
    for group in yaml.safe_load(rule_file())["groups"]:
        assert next(iter(group)) == "name"
        for rule in group["rules"]:
            assert list(rule)[:2] in (["record", "expr"], ["alert", "expr"])
