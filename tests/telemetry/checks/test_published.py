"""The published operator list is unchanged, and derived data refers to it."""

from telemetry.checks.operators import operator_name
from telemetry.checks.support import Basis, SupportState, judge, published
from tests.telemetry.checks.files import read


def test_it_has_41_operators_with_source_and_date() -> None:
    listed = published().listed

    assert len(listed.names) == 41
    assert published().sources[listed.source].title.startswith("aws-neuron-sdk: ")
    assert published().list_date == "2026-04"


def test_every_part_has_a_source() -> None:
    parts = ("listed", "aliases", "lowerings", "refused", "targets")

    found = {getattr(published(), part).source for part in parts}
    found |= {each.source for each in published().evidence}
    assert found == set(published().sources)


def test_whatever_is_derived_leads_to_a_listed_operator() -> None:
    leads = {*published().aliases.names.values(), *published().lowerings.names.values()}

    assert leads <= published().listed.names


def test_names_are_written_as_the_reader_writes_them() -> None:
    written = {
        *published().listed.names,
        *published().aliases.names,
        *published().lowerings.names,
        *published().refused.names,
    }

    assert {name for name in written if operator_name(name) != name} == set()


def test_evidence_is_about_operators_that_nothing_else_judges() -> None:
    for evidence in published().evidence:
        for name in evidence.names:
            assert not published().listed_as(name), name
            assert name not in published().lowerings.names, name
            assert name not in published().refused.names, name
            assert operator_name(name.removesuffix("*")) == name.removesuffix("*")


def test_all_that_is_listed_is_supported() -> None:
    reading = read("\n".join(sorted(published().listed.names)))

    found = judge(reading, published())
    assert {(each.state, each.basis) for each in found} == {(SupportState.SUPPORTED, Basis.LIST)}
    assert len(found) == 41
