"""`pip install trnwatch` installs the reporter alone, on Python 3.9 and later."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fleet.version import VERSION
from trnwatch.version import VERSION as PACKAGED

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "trnwatch").glob("*.py"))
FOREIGN = ["django", "numpy", "msgspec", "redis", "celery", "torch", "transformers", "lightning"]
TRY = f"""
import sys
sys.path.insert(0, sys.argv[1])
import trnwatch, trnwatch.huggingface, trnwatch.lightning
reporter = trnwatch.Reporter.from_env()
with reporter.step() as step:
    with step.collective():
        pass
reporter.finish()
assert not reporter.is_reporting
assert not set(sys.modules) & set({FOREIGN})
print(trnwatch.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        ROOT / "trnwatch", folder / "trnwatch", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", folder)
    # What pip asks of the project's own build backend, without pip: the tests' Python has none.
    build = "from setuptools import build_meta; build_meta.build_wheel('out')"
    (folder / "out").mkdir()
    subprocess.run(
        [sys.executable, "-c", build], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    [built] = (folder / "out").glob("*.whl")
    return built


def test_the_wheel_holds_the_reporter_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.partition("/")[0] for name in archive.namelist()}
        metadata = archive.read(f"trnwatch-{VERSION}.dist-info/METADATA").decode()

    assert folders == {"trnwatch", f"trnwatch-{VERSION}.dist-info"}
    assert "Requires-Dist" not in metadata
    assert "Provides-Extra: client" in metadata
    assert "Requires-Python: >=3.9" in metadata
    assert wheel.stat().st_size < 50_000


def test_it_runs_where_nothing_else_is_installed(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)

    bare = [sys.executable, "-S", "-I", "-W", "error", "-c", TRY, str(tmp_path)]
    done = subprocess.run(bare, capture_output=True, text=True, check=False, env={})

    assert done.stderr == ""
    assert str(tmp_path) in done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_is_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_the_package_has_the_services_version() -> None:
    assert PACKAGED == VERSION
