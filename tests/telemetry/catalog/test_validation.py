"""A broken catalogue is refused with location and fix."""

import shutil
from pathlib import Path

import pytest

from telemetry import catalog
from telemetry.catalog import read_catalog
from telemetry.errors import FieldError

VALID = Path(catalog.__file__).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in VALID.glob("*.toml"):
        shutil.copy(file, tmp_path)
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_the_shipped_catalogue_is_valid(folder: Path) -> None:
    assert read_catalog(folder).instances


def test_a_figure_without_a_source(folder: Path) -> None:
    change(folder / "chips.toml", '{ value = 820e9, source = "sdk-trainium" }', "820e9")

    with pytest.raises(FieldError, match=r"chips.toml Trainium1.hbm_bytes_per_s: .* must be"):
        read_catalog(folder)


def test_a_source_that_is_nowhere(folder: Path) -> None:
    change(folder / "chips.toml", 'source = "sdk-trainium"', 'source = "sdk-trainum"')

    with pytest.raises(FieldError, match=r"source: 'sdk-trainum' .* did you mean sdk-trainium"):
        read_catalog(folder)


def test_a_figure_of_a_wrong_type(folder: Path) -> None:
    change(folder / "instances.toml", "n_efa = { value = 8,", "n_efa = { value = -8,")

    with pytest.raises(FieldError, match=r"instances.toml trn1.32xlarge: .*n_efa"):
        read_catalog(folder)


def test_a_chip_that_is_nowhere(folder: Path) -> None:
    change(folder / "instances.toml", 'chip = "H200"', 'chip = "H20"')

    with pytest.raises(FieldError, match=r"p5en.48xlarge.chip: 'H20' .* did you mean H200"):
        read_catalog(folder)


def test_a_model_with_a_field_too_many(folder: Path) -> None:
    change(folder / "models.toml", "layers = 32", "layers = 32\nwheels = 4")

    with pytest.raises(FieldError, match=r"models.toml llama2-7b: .*wheels"):
        read_catalog(folder)


def test_what_is_no_toml(folder: Path) -> None:
    (folder / "models.toml").write_text("[")

    with pytest.raises(FieldError, match=r"^models.toml: .* can't be read"):
        read_catalog(folder)
