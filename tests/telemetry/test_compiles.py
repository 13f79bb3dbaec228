"""Comparing cache keys: real differences, and different spellings."""

from hypothesis import given
from hypothesis import strategies as st

from telemetry.compiles import MISS, Compile, flags_of, key_changes

FLAGS = st.lists(
    st.sampled_from(["-O1", "-O2", "--model-type=transformer", "--auto-cast=none", "--lnc=1"]),
    unique=True,
)


def whats(before: Compile, after: Compile) -> list[str]:
    return [part.what for part in key_changes(before, after)]


def test_every_part_of_the_key_is_distinguished() -> None:
    was = Compile("MODULE_1+a", MISS, compiler="2.19", flags="-O1", shape="8x128")
    now = Compile("MODULE_2+b", MISS, compiler="2.21", flags="-O2", shape="4x128")

    assert whats(was, now) == ["compiler", "flags", "shape"]


def test_a_graph_without_shapes_is_only_another_graph() -> None:
    assert whats(Compile("MODULE_1+a", MISS), Compile("MODULE_2+a", MISS)) == ["graph"]


def test_a_hash_of_flags_that_no_one_spells_out_is_still_a_change() -> None:
    (change,) = key_changes(Compile("MODULE_1+a", MISS), Compile("MODULE_1+b", MISS))

    assert (change.what, change.before, change.after) == ("flags", "", "")


def test_what_is_unknown_is_no_difference() -> None:
    assert whats(Compile("MODULE_1", MISS, compiler="2.19"), Compile("MODULE_1", MISS)) == [
        "nothing"
    ]


@given(FLAGS)
def test_order_and_repetition_of_flags_change_nothing(flags: list[str]) -> None:
    shuffled = sorted(flags) + flags
    was = Compile("MODULE_1", MISS, flags=" ".join(flags))
    now = Compile("MODULE_1", MISS, flags=" ".join(shuffled))

    assert whats(was, now) == ["nothing"]
    assert set(flags_of(now.flags)) == set(flags_of(was.flags))
