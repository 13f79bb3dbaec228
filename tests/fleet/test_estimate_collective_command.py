"""`manage.py estimate_collective`: text, JSON and invalid input."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

PAIR = {"instance": "trn1.32xlarge", "nodes": 2, "ranks": 64, "bytes": 2**30}


def answer(**options: Any) -> str:
    out = StringIO()
    call_command("estimate_collective", stdout=out, **options)
    return out.getvalue()


def test_json_is_one_object_with_the_promised_keys() -> None:
    found = json.loads(answer(json=True, **PAIR))

    assert list(found) == ["time_us", "busbw_gib_per_s"]
    assert found["time_us"] == pytest.approx(41_806, rel=0.05)
    assert found["busbw_gib_per_s"] == pytest.approx(47.09, rel=0.05)


def test_text_names_source_and_target() -> None:
    text = answer(**PAIR)

    assert text.startswith("all_reduce of 1,073,741,824 bytes over 64 ranks on 2 x trn1.32xlarge")
    assert "384 GB/s per Trainium1 inside a node, 800 Gbit/s EFA per node" in text


def test_a_node_without_efa_talks_over_ethernet() -> None:
    text = answer(**PAIR | {"instance": "trn1.2xlarge", "ranks": 4})

    assert "25 Gbit/s Ethernet per node" in text


def test_an_inference_type_has_collectives_too() -> None:
    assert "Inferentia2" in answer(instance="inf2.48xlarge", nodes=1, ranks=24, bytes=1024)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instance": "trn1"}, r"^instance: 'trn1' is not known; did you mean"),
        ({"ranks": 65}, r"^ranks: 65 .* take 2 to 64"),
        ({"ranks": 63}, r"^ranks: 63 does not divide by 2 nodes"),
        ({"nodes": 0}, r"^nodes: 0 is too few"),
        ({"bytes": -1}, r"^bytes: -1 is too few"),
        ({"op": "reduce"}, r"^op: 'reduce' is not known; take one of all_reduce"),
    ],
)
def test_bad_input_names_the_field_and_ends_with_two(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        answer(**PAIR | change)

    assert caught.value.returncode == 2
