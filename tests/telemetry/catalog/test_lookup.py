"""Catalogue lookup: known, misspelled and untrainable names."""

import pytest

from telemetry.catalog import instance, model, training_instance
from telemetry.errors import FieldError


def test_a_known_name_is_found() -> None:
    assert instance("trn1.32xlarge").chip.name == "Trainium1"
    assert model("llama2-7b").layers == 32


def test_a_nearly_known_instance_is_answered_with_the_nearest() -> None:
    with pytest.raises(FieldError, match=r"^instance: 'trn2\.48xl' .* did you mean trn2\.48xl"):
        instance("trn2.48xl")


def test_a_nearly_known_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(FieldError, match=r"^model: 'Llama2-7B' .* did you mean llama2-7b"):
        model("Llama2-7B")


def test_an_unknown_name_lists_all_names() -> None:
    with pytest.raises(FieldError, match=r"known are bert-base, .*, vit-large") as caught:
        model("q")

    assert "did you mean" not in str(caught.value)
    assert caught.value.field == "model"


def test_an_inference_type_refuses_to_train_and_states_what_can() -> None:
    with pytest.raises(FieldError, match=r"inference only .* use one of trn1\.2xlarge") as caught:
        training_instance("inf2.48xlarge")

    assert "inf2" not in str(caught.value).partition("use one of")[2]


def test_an_inference_type_is_in_the_catalogue_all_the_same() -> None:
    assert not instance("inf2.48xlarge").can_train


@pytest.mark.parametrize(
    ("name", "other"), [("trn3.48xlarge", "trn2"), ("p6-b200.48xlarge", "p5")]
)
def test_a_chip_without_a_published_run_is_refused_with_alternatives(
    name: str, other: str
) -> None:
    with pytest.raises(FieldError, match=rf"no run on .* is published; use one of .*{other}"):
        training_instance(name)
