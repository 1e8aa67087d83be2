"""Environments of their own for peers whose versions clash with the project's.

`environments/NAME.txt` has the versions of all that a peer needs; the environment lies in `.uv/peers` of the checkout.
Peers that get along with the project are in the dependency group `peers`: `./uvw sync --group dev --group peers`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = Path(__file__).resolve().parent / "environments"


def python_of(name: str, changes: Mapping[str, str] | None = None) -> Path:
    """The Python of a peer's environment, which is made if it is not there.

    Args:
        name: of its file in `environments/`.
        changes: versions to take instead of those in the file, by package.
    """
    text = (ENVIRONMENTS / f"{name}.txt").read_text(encoding="utf-8")
    for package, version in (changes or {}).items():
        text = re.sub(rf"(?m)^{re.escape(package)}==\S+", f"{package}=={version}", text)
    wanted = hashlib.sha256(f"{platform.python_version()}\n{text}".encode()).hexdigest()[:12]
    folder = ROOT / ".uv" / "peers" / f"{name}-{wanted}"
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        pins = folder.with_suffix(".txt")
        pins.write_text(text, encoding="utf-8")
        _uv("venv", "--clear", "--python", platform.python_version(), folder)
        _uv("pip", "sync", "--compile-bytecode", "--python", python, pins)
        done.touch()
    return python


def _uv(*arguments: str | Path) -> None:
    subprocess.run([ROOT / "uvw", *map(str, arguments), "--quiet"], check=True)


def run_in(python: Path, script: Path, given: Any) -> Any:
    """What a script of another environment prints as JSON, given a value as JSON on its standard input."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    answer = subprocess.run(
        [python, script], input=json.dumps(given).encode(), stdout=subprocess.PIPE, check=True, env=environment
    )
    return json.loads(answer.stdout.splitlines()[-1])


def versions_in(python: Path, *packages: str) -> dict[str, str]:
    """The versions of packages in another environment."""
    script = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    found: dict[str, str] = json.loads(subprocess.check_output([python, "-c", script, *packages]))
    return found
