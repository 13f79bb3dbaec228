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


def test_the_shipped_catalogue_is_valid(folder: Path) -> None:
    assert read_catalog(folder).instances


@pytest.mark.parametrize(
    ("file", "old", "new", "shown"),
    [
        (
            "chips.toml",
            '{ value = 820e9, source = "sdk-trainium" }',
            "820e9",
            r"chips.toml Trainium1.hbm_bytes_per_s: .* must be",
        ),
        (
            "chips.toml",
            'source = "sdk-trainium"',
            'source = "sdk-trainum"',
            r"source: 'sdk-trainum' .* did you mean sdk-trainium",
        ),
        (
            "instances.toml",
            "n_efa = { value = 8,",
            "n_efa = { value = -8,",
            r"instances.toml trn1.32xlarge: .*n_efa",
        ),
        (
            "instances.toml",
            'chip = "H200"',
            'chip = "H20"',
            r"p5e.48xlarge.chip: 'H20' .* did you mean H200",
        ),
        (
            "models.toml",
            "layers = 32",
            "layers = 32\nwheels = 4",
            r"models.toml llama2-7b: .*wheels",
        ),
    ],
    ids=["no source", "unknown source", "negative number", "unknown chip", "unknown field"],
)
def test_a_mistake_is_named(folder: Path, file: str, old: str, new: str, shown: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))

    with pytest.raises(FieldError, match=shown):
        read_catalog(folder)


def test_what_is_no_toml(folder: Path) -> None:
    (folder / "models.toml").write_text("[")

    with pytest.raises(FieldError, match=r"^models.toml: .* can't be read"):
        read_catalog(folder)
