"""Model shapes: parameters follow from dimensions, FLOPs from both."""

from telemetry.catalog import Model, model, models
from telemetry.simulate.step_model import is_gated

GATED = {name for name in models() if name.startswith(("llama", "mistral"))}


def counted_params(found: Model) -> float:
    attention = 2 * found.hidden**2 * (1 + found.kv_heads / found.heads)
    matrices = 3 if found.name in GATED else 2
    return found.layers * (attention + matrices * found.hidden * found.ffn)


def test_layers_and_one_or_two_embeddings_make_up_the_parameters() -> None:
    for name, found in models().items():
        layers = counted_params(found)

        assert layers <= found.params <= 1.03 * (layers + 2 * found.head_params), name


def test_a_gate_is_recognised_by_the_size() -> None:
    assert {name for name, found in models().items() if is_gated(found)} == GATED


def test_flops_per_token_are_six_per_parameter_and_attention() -> None:
    llama = model("llama2-7b")

    assert llama.flops_per_token(4096) == 6 * 6.74e9 + 12 * 32 * 4096 * 4096


def test_patches_are_the_tokens_of_a_picture() -> None:
    assert model("vit-large").seq_len == (224 // 16) ** 2 + 1
    assert model("vit-huge").seq_len == (224 // 14) ** 2 + 1
