"""The files that a node needs: the agent, and the reporter's wheel. Standard library only."""

import base64
import hashlib
import io
import re
import zipapp
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
SHARED = ("trnwatch/log.py", "trnwatch/surroundings.py", "trnwatch/wire.py")
MAIN = "import sys\nfrom telemetry.agent.program import main\nsys.exit(main(sys.argv[1:]))\n"
VERSION = re.compile(r'VERSION = "(.+)"')


def agent_file() -> bytes:
    """Return the agent as one file that any Python from 3.9 on can run."""
    with TemporaryDirectory() as name:
        files = {
            "__main__.py": MAIN.encode(),
            "telemetry/__init__.py": b"",
            "trnwatch/__init__.py": b"",
            # Of the reporter's package it needs these modules.
            **{path: (ROOT / path).read_bytes() for path in SHARED},
        }
        for path, content in (files | _modules("telemetry/agent")).items():
            target = Path(name) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        packed = io.BytesIO()
        zipapp.create_archive(name, packed, "/usr/bin/env python3", compressed=True)
    return packed.getvalue()


def reporter_wheel() -> tuple[str, bytes]:
    """Return the name and the content of the wheel of the reporter, for training nodes."""
    version = VERSION.findall((ROOT / "trnwatch/version.py").read_text())[0]
    folder = f"trnwatch-{version}.dist-info"
    files = _modules("trnwatch") | {
        "trnwatch/py.typed": b"",
        f"{folder}/METADATA": (
            f"Metadata-Version: 2.1\nName: trnwatch\nVersion: {version}\nRequires-Python: >=3.9\n"
        ).encode(),
        f"{folder}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: trnwatch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    rows = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{folder}/RECORD"] = "\n".join([*rows, f"{folder}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return f"trnwatch-{version}-py3-none-any.whl", packed.getvalue()


def _modules(folder: str) -> dict[str, bytes]:
    return {f"{folder}/{path.name}": path.read_bytes() for path in (ROOT / folder).glob("*.py")}


def _digest(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
