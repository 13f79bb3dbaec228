"""`manage.py estimate`: text, JSON and invalid input."""

import json
import re
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
        "mfu_causal_ratio",
        "median_error_ratio",
        "spread_ratio",
        "basis",
        "memory_bytes",
        "fits",
        "load_s",
        "warm_up_s",
        "first_step_s",
        "chosen",
    ]
    assert found["seq_per_s"] == pytest.approx(94.0, rel=0.15)
    assert found["usd_per_mtok"] == pytest.approx(16 * 21.5 / 3600 / found["tokens_per_s"] * 1e6)


def test_text_has_units_peak_and_price() -> None:
    text = answer(**LLAMA)

    assert text.startswith("llama2-7b on 16 x trn1.32xlarge, bf16: tp 8, pp 1, 64 replicas")
    assert "of 190 TFLOPS bf16 per Trainium1" in text
    assert "at 21.50 USD/h, on demand, us-east-1, us-east-2, us-west-2, 2026-08-26" in text


def test_values_stand_in_one_column() -> None:
    lines = answer(**LLAMA).splitlines()[2:]

    assert len({line.index(line.split("  ")[-1]) for line in lines}) == 1


def test_what_is_left_out_is_chosen_and_named() -> None:
    chosen = {"vp": 1, "micro_batch": 1, "sequence_parallel": True, "recompute": "selective"}

    assert figures(**LLAMA)["chosen"] == chosen
    assert "chosen: vp 1, micro batch 1, sequence parallel on, recompute sel" in answer(**LLAMA)
    assert figures(**LLAMA, **chosen)["chosen"] == {}
    assert figures(**LLAMA, **chosen)["step_s"] == figures(**LLAMA)["step_s"]


def test_both_definitions_of_mfu_follow_from_the_tokens() -> None:
    found = figures(**LLAMA)
    attention = 12 * 32 * 4096 * 4096
    peak = 16 * 16 * 190e12

    full = (6 * 6.74e9 + attention) * found["tokens_per_s"] / peak
    causal = (6 * 6.74e9 + attention / 2) * found["tokens_per_s"] / peak
    assert found["mfu_ratio"] == pytest.approx(full)
    assert found["mfu_causal_ratio"] == pytest.approx(causal)


def test_the_best_layouts_come_first_and_fit_and_are_what_estimate_says_of_them() -> None:
    layouts = figures(**LLAMA, tune=True)["layouts"]
    costs = [each["usd_per_mtok"] for each in layouts]

    assert costs == sorted(costs)
    assert max(each["memory_bytes"] for each in layouts) <= 32 * 2**30
    best = layouts[0]
    options = {key: best[key] for key in ("tp", "pp", "cp", "vp", "micro_batch", "recompute")}
    assert figures(**LLAMA | options)["step_s"] == best["step_s"]
    assert best["step_s"] <= figures(**LLAMA)["step_s"]


@pytest.mark.parametrize(
    "kept", [{"vp": 2}, {"sequence_parallel": False}, {"sequence_parallel": True}]
)
def test_what_the_search_does_not_vary_is_kept(kept: dict[str, int]) -> None:
    layouts = figures(**LLAMA, **kept, tune=True)["layouts"]

    best = next(each for each in layouts if each["tp"] > 1)
    options = {key: best[key] for key in ("tp", "pp", "cp", "vp", "micro_batch", "recompute")}
    assert {each["vp"] for each in layouts} == {2} or "vp" not in kept
    assert min(each["tp"] for each in layouts) > 1 or not kept.get("sequence_parallel")
    assert figures(**LLAMA | options | kept)["step_s"] == best["step_s"]


def test_pieces_that_no_stage_has_end_with_two() -> None:
    with pytest.raises(CommandError, match=r"^nodes: no layout .* vp 7; .* leave out vp"):
        answer(**LLAMA, vp=7, tune=True)


def test_the_best_layouts_as_text() -> None:
    text = answer(**LLAMA, tune=True)

    assert "layouts of llama2-7b on 16 x trn1.32xlarge, bf16 fit in memory" in text
    assert "0.0% above the best" in text.splitlines()[1]


def test_no_layout_that_fits_ends_with_two() -> None:
    options = LLAMA | {"model": "gpt3-175b", "nodes": 1, "seq_len": 2048, "global_batch": 32}
    with pytest.raises(CommandError, match=r"^nodes: no layout .* fits .* take more nodes"):
        answer(**options, tune=True)


def test_what_does_not_fit_ends_with_two_and_a_layout_that_fits() -> None:
    options = LLAMA | {"model": "llama3.1-70b", "instance": "p5.48xlarge", "nodes": 8, "tp": 2}
    options |= {"pp": 2, "seq_len": 8192, "global_batch": 64, "recompute": "none"}
    with pytest.raises(CommandError, match=r"^tp: \d+ GiB of the 80 GiB .* take (.*)$") as caught:
        answer(**options)

    words = re.findall(r"(\w+) (\w+)(?:,|$)", str(caught.value).split("take ")[1])
    fix = {name: value if name == "recompute" else int(value) for name, value in words}
    assert figures(**options | fix)["fits"]


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


def test_what_needs_little_more_memory_than_there_is_is_predicted_with_a_warning() -> None:
    out, err = StringIO(), StringIO()
    options = {"model": "gpt3-20b", "instance": "p5.48xlarge", "nodes": 8, "tp": 2, "pp": 1}
    options |= {"seq_len": 2048, "global_batch": 256, "micro_batch": 4, "recompute": "selective"}
    options |= SHAPE | {"params_b": 20.25, "layers": 44, "hidden": 6144, "heads": 48}
    options |= {"kv_heads": 48, "ffn": 24576}
    call_command("estimate", stdout=out, stderr=err, json=True, **options)

    assert "is more than the 80 GiB of one H100; raise tp or pp" in err.getvalue()
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
        ({"model": "vit-base"}, r"^tp: 8 does not divide the 12 attention heads .* 1, 2, 4$"),
        ({"cp": 3}, r"^cp: 3 does not divide the 64 ranks .*; take one of 1, 2, 4"),
        ({"cp": 0}, r"^cp: 0 is out of range"),
        ({"vp": 2}, r"^vp: 2 does not divide .*; take one of 1$"),
        ({"pp": 2, "vp": 3}, r"^vp: 3 does not divide the 16 layers .*; take one of 1, 2, 4"),
        ({"micro_batch": 3}, r"^micro_batch: 3 does not divide the 16 sequences .* 1, 2, 4"),
        ({"recompute": "some"}, r"^recompute: 'some' is not known; take one of none, selective"),
        ({"tp": 1, "sequence_parallel": True}, r"^sequence_parallel: .* take tp above 1"),
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

    assert ("no published run of this chip" in text) == is_assumed
    basis = figures(**LLAMA | {"instance": instance, "precision": precision})["basis"]
    assert basis == ("assumed" if is_assumed else "published")
