"""What is said of each trouble, and of the group."""

import pytest

from fleet.preflight.words import WRITERS, listed, reason
from telemetry.preflight.trouble import KINDS, PAIRS, Trouble


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_trouble_has_its_words(kind: str) -> None:
    peer = "b" if kind in PAIRS else None
    trouble = Trouble(kind, "a", peer, device=3, metric="p99_s", value=6e-5, usual=2e-5)

    assert len(reason(trouble, of="a")) > 10
    assert (kind in WRITERS) != (kind in PAIRS)


def test_a_pair_is_told_from_either_side() -> None:
    pair = Trouble("pair_slow", "a", "b", metric="p50_s", value=6e-5, usual=2e-5)

    assert reason(pair, of="a").startswith("slow with b, but not by itself: its messages take")
    assert reason(pair, of="b").startswith("slow with a, but not by itself: its messages take")


def test_long_lists_are_cut() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdefghijk")) == "a, b, c, d, e, f, g, h and 3 more"
