"""`manage.py estimate`: text, JSON and invalid input."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from fleet.management.commands.estimate import Command

LLAMA = {
    "model": "llama2-7b",
    "instance": "trn1.32xlarge",
    "nodes": 16,
    "tp": 8,
    "pp": 1,
    "seq_len": 4096,
    "global_batch": 1024,
}
SHAPE = {
    "params_b": 6.74,
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 32,
    "ffn": 11008,
    "vocab": 32000,
}


def answer(**options: Any) -> str:
    out = StringIO()
    call_command("estimate", stdout=out, **options)
    return out.getvalue()


def figures(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(json=True, **options))
    return found


def test_json_is_one_object_with_the_promised_keys() -> None:
    found = figures(**LLAMA)

    assert list(found) == [
        "step_s",
        "seq_per_s",
        "tokens_per_s",
        "mfu_ratio",
        "allreduce_share_ratio",
        "usd_per_mtok",
    ]
    assert found["seq_per_s"] == pytest.approx(101.3, rel=0.1)
    assert found["usd_per_mtok"] == pytest.approx(16 * 21.5 / 3600 / found["tokens_per_s"] * 1e6)


def test_text_has_units_peak_and_price() -> None:
    text = answer(**LLAMA)

    assert text.startswith("llama2-7b on 16 x trn1.32xlarge, bf16: tp 8, pp 1, 64 replicas")
    assert "of 190 TFLOPS bf16 per Trainium1" in text
    assert "at 21.50 USD/h, on demand, us-east-1, us-east-2, us-west-2, 2026-08-26" in text


def test_values_stand_in_one_column() -> None:
    lines = answer(**LLAMA).splitlines()[1:]

    assert len({line.index(line.split("  ")[-1]) for line in lines}) == 1


def test_a_model_of_ones_own_is_described_by_flags() -> None:
    assert figures(**LLAMA | {"model": "my-own"} | SHAPE) == figures(**LLAMA)


def test_flags_change_a_known_model() -> None:
    deeper = figures(**LLAMA, layers=64, params_b=13.2)

    assert deeper["step_s"] > 1.8 * figures(**LLAMA)["step_s"]


def test_key_and_value_heads_are_as_many_as_heads_unless_configured() -> None:
    shape = {key: value for key, value in SHAPE.items() if key != "kv_heads"}

    assert figures(**LLAMA | {"model": "my-own"} | shape) == figures(**LLAMA)


def test_a_type_without_a_price_has_no_cost() -> None:
    options = LLAMA | {"instance": "trn2u.48xlarge"}

    assert figures(**options)["usd_per_mtok"] is None
    assert "no price of trn2u.48xlarge is published" in answer(**options)


def test_what_does_not_fit_into_memory_is_predicted_with_a_warning() -> None:
    out, err = StringIO(), StringIO()
    options = LLAMA | {"model": "gpt3-175b", "nodes": 1, "seq_len": 2048, "global_batch": 4}
    call_command("estimate", stdout=out, stderr=err, json=True, **options)

    assert "is more than the 32 GiB of one Trainium1; raise tp or pp" in err.getvalue()
    assert json.loads(out.getvalue())["step_s"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "my-own"}, r"^model: 'my-own' is not known"),
        ({"model": "my-own", "layers": 2}, r"^model: .* --params-b, --hidden, .* missing"),
        ({"instance": "inf2.48xlarge"}, r"^instance: .* inference only"),
        ({"instance": "trn9"}, r"^instance: 'trn9' is not known"),
        ({"tp": 7}, r"^tp: 7 does not divide .*; take one of"),
        ({"nodes": 0}, r"^nodes: 0 is out of range; take 1 to"),
        ({"global_batch": 1000}, r"^global_batch: .* take a multiple of 64"),
        ({"precision": "int4"}, r"^precision: 'int4' is not known .*; take one of"),
        ({"layers": -1}, r"^layers: -1 is out of range"),
        ({"params_b": float("nan")}, r"^params_b: nan is out of range"),
        ({"heads": 7}, r"^heads: 7 must divide hidden 4096"),
        ({"kv_heads": 5}, r"^kv_heads: 5 must divide heads 32"),
    ],
)
def test_bad_input_names_the_field_and_ends_with_two(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        answer(**LLAMA | change)

    assert caught.value.returncode == 2


def run_from_a_shell(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        Command().run_from_argv(["manage.py", "estimate", *arguments])
    return int(caught.value.code or 0)


def flags(**changes: str) -> list[str]:
    options = {key: str(value) for key, value in LLAMA.items()} | changes
    return [text for key, v in options.items() for text in (f"--{key.replace('_', '-')}", v)]


def test_a_shell_gets_two_and_one_line_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_from_a_shell(*flags(tp="7")) == 2

    out, err = capfd.readouterr()
    assert out == ""
    assert "tp: 7 does not divide the 32 cores" in err
    assert err.count("\n") == 1


def test_what_is_no_number_ends_with_two_and_the_flag(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_from_a_shell(*flags(seq_len="4k")) == 2
    assert "argument --seq-len: invalid int value: '4k'" in capfd.readouterr().err


def test_a_flag_left_out_ends_with_two_and_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_from_a_shell("--model", "llama2-7b") == 2
    assert "--instance" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("instance", "precision", "is_assumed"),
    [
        ("trn2.48xlarge", "fp8", True),
        ("trn2.48xlarge", "bf16", False),
        ("p5.48xlarge", "fp8", False),
    ],
)
def test_a_speed_without_a_published_figure_is_called_assumed(
    instance: str, precision: str, *, is_assumed: bool
) -> None:
    text = answer(**LLAMA | {"instance": instance, "precision": precision})

    assert ("assumed" in text) == is_assumed
