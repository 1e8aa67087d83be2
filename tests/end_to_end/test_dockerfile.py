"""The image of a worker: what its file says, and, where that is asked for, what its steps make.

    WEBTEXT_BUILD_IMAGE=1 ./uvw run --group dev pytest tests/end_to_end/test_dockerfile.py

builds it where a docker daemon runs. Elsewhere its steps are taken in a fresh folder that stands for the root of the
image; what they would change of the base image (users, uv itself) is left out. That installs a gigabyte.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
ASKED_FOR = "WEBTEXT_BUILD_IMAGE" in os.environ


def steps() -> list[tuple[str, str]]:
    """The instructions and their arguments, in order."""
    lines = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
    assert not any(line.endswith("\\") for line in lines)
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def arguments_of(instruction: str) -> list[str]:
    return [rest for word, rest in steps() if word == instruction]


def test_the_image_is_that_of_this_project_and_runs_as_nobody_special():
    [sync] = [step for step in arguments_of("RUN") if step.startswith("uv sync")]
    package = tomllib.loads((ROOT / "packages/webtext_prep/pyproject.toml").read_text())["project"]
    assert f"--package {package['name']}" in sync
    assert {"ray", "s3"} == set(re.findall(r"--extra (\S+)", sync)) <= package["optional-dependencies"].keys()
    version = re.search(r"^VERSION=(\S+)", (ROOT / "uvw").read_text(), re.MULTILINE)
    assert version is not None
    assert any(step.endswith(f" uv=={version[1]}") for step in arguments_of("RUN"))
    # The user may not write bytecode next to the packages.
    assert "UV_COMPILE_BYTECODE=1" in arguments_of("ENV")[0].split()
    assert arguments_of("USER") == ["webtext"]
    assert steps().index(("USER", "webtext")) > max(at for at, (word, _) in enumerate(steps()) if word == "COPY")


def test_no_host_is_named():
    assert "://" not in TEXT
    assert not re.search(r"index|registry|--from=\S+\.", TEXT)
    assert arguments_of("ARG") == ["PYTHON=python:3.12-slim"]


def test_what_is_copied_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [rest.split()[:-1] for rest in arguments_of("COPY") if not rest.startswith("--from=")]
    for name in (name for names in sources for name in names):
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored


def docker_runs() -> bool:
    return (
        shutil.which("docker") is not None and subprocess.run(["docker", "info"], capture_output=True).returncode == 0
    )


def take_steps(root: Path) -> dict[str, str]:
    """Take the steps below a folder; returns the environment of the image."""

    def within(text: str) -> str:
        return re.sub(r"(?<![\w.}])/(build|opt)\b", rf"{root}/\1", text)

    outside = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    found, folder = dict(outside), root
    for word, rest in steps():
        if word == "FROM":
            found = dict(outside)
        elif word == "ENV":
            for name, value in (pair.split("=", 1) for pair in rest.split()):
                found[name] = within(value).replace("${PATH}", found["PATH"])
            found.pop("UV_NO_CACHE", None)
        elif word == "WORKDIR" and rest.startswith("/build"):
            folder = Path(within(rest))
            folder.mkdir()
        elif word == "COPY" and not rest.startswith("--from="):
            name, target = rest.split()
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / (name if target == "./" else target))
        elif word == "RUN" and rest.split()[0] not in ("pip", "useradd"):
            subprocess.run(["sh", "-ec", within(rest)], cwd=folder, env=found, check=True)
    return found


@pytest.mark.skipif(not ASKED_FOR, reason="installs a gigabyte: set WEBTEXT_BUILD_IMAGE=1")
def test_the_image_has_all_that_a_worker_needs(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("A text of one file, in a few words.")
    merge = ["webtext", "merge", "--input", "texts", "--output", "merged", "--engine", "ray", "--workers", "2"]
    look = ["python", "-c", "import ray, obstore, importlib.util as u; assert u.find_spec('torch') is None"]
    if docker_runs():
        subprocess.run(["docker", "build", "--tag", "webtext:test", ROOT], check=True)
        tmp_path.chmod(0o777)
        run = [
            "docker",
            "run",
            "--rm",
            "--shm-size=1g",
            f"--volume={tmp_path}:/data",
            "--workdir=/data",
            "webtext:test",
        ]
        environment = None
    else:
        environment, run = take_steps(tmp_path), ["env"]
    for command in (merge, look):
        subprocess.run([*run, *command], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "merged" / "part-00000.jsonl.zst").is_file()
