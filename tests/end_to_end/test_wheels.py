"""The wheels: complete, of one version, and enough to run a pipeline where there is no checkout."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [tomllib.loads(file.read_text())["project"] for file in sorted(ROOT.glob("packages/*/pyproject.toml"))]
MINE = {project["name"] for project in PROJECTS}


def requirements(project):
    extras = [entry for entries in project.get("optional-dependencies", {}).values() for entry in entries]
    return [*map(Requirement, [*project["dependencies"], *extras])]


def test_all_packages_have_one_version_and_need_each_other_in_it():
    (version,) = {project["version"] for project in PROJECTS}
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert root["version"] == version
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] in (version, "Unreleased")
    assert all(name.startswith("webtext-gpt2") for name in MINE), "a stranger's package could be installed instead"
    for project in PROJECTS:
        for requirement in requirements(project):
            assert requirement.name not in MINE or str(requirement.specifier) == f"=={version}", project["name"]
            assert not requirement.name.startswith(("command", "indexed")), "the old names"


def test_all_places_have_one_address_of_the_repository_and_one_version():
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = root["urls"]["Repository"]
    for project in PROJECTS:
        assert project["urls"]["Repository"] == address
        assert all(url.startswith(address) for url in project["urls"].values())
        assert project["authors"] == root["authors"]
    assert f"repo_url: {address}\n" in (ROOT / "mkdocs.yml").read_text()
    citation = (ROOT / "CITATION.cff").read_text()
    assert f'repository-code: "{address}"\n' in citation
    assert f"\nversion: {root['version']}\n" in citation


def test_actions_are_pinned_by_one_sha_each_with_its_version():
    texts = [file.read_text() for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    used = [line for text in texts for line in re.findall(r"uses: (.*)", text)]
    pinned = {re.fullmatch(r"([\w/-]+)@([0-9a-f]{40}) # v[\d.]+", line) for line in used}
    assert used and None not in pinned
    assert len({line.partition("@")[0] for line in used}) == len(set(used))


def test_every_pipeline_comes_with_the_package():
    inside = ROOT / "packages" / "webtext_run" / "src" / "webtext_run" / "pipelines"
    assert {file.name for file in inside.iterdir()} == {file.name for file in (ROOT / "pipelines").glob("*.toml")}
    assert all(file.is_symlink() and file.resolve().parent == ROOT / "pipelines" for file in inside.iterdir())


def test_the_lock_names_what_is_installed_with_hashes_and_without_a_host():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    lines = map(Requirement, re.findall(r"^([^\s#].*?)(?: \\)?$", text, re.MULTILINE))
    locked = {line.name: str(line.specifier)[2:] for line in lines if line.marker is None or line.marker.evaluate()}
    assert len(re.findall(r"^    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) > len(locked) > 150
    found = importlib.metadata.distributions(path=[sysconfig.get_paths()["purelib"]])
    installed = {each.name.lower().replace("_", "-").replace(".", "-"): each.version for each in found}
    both = locked.keys() & installed.keys()
    assert len(both) > 150
    assert {name: locked[name] for name in both} == {name: installed[name] for name in both}, (
        "write it again: ./uvw export --no-emit-workspace --no-header --no-annotate --group dev -o requirements.lock"
    )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The folder with all wheels; uv builds them itself, so that nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheels")
    words = [ROOT / "uvw", "build", "--all-packages", "--wheel", "--offline", "--quiet", "--out-dir", folder]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.exhaustive
def test_the_wheels_alone_run_the_data_side_of_a_pipeline(wheels, tmp_path):
    """Installed with their dependencies, with no checkout and no trainer."""
    site = tmp_path / "site"
    for wheel in wheels.glob("*.whl"):
        names = zipfile.ZipFile(wheel).namelist()
        assert any(name.endswith("/py.typed") for name in names)
        if "train" not in wheel.name:
            zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "texts").mkdir()
    for number in range(12):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"Text {number} of the river and the town. " * (20 + number))
    # The checkout's packages are on the path of this environment, after what is named here.
    program = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'gpt2_train' else find(name, *more)\n"
        "import webtext_run, webtext_prep\n"
        f"assert all(module.__file__.startswith({str(site)!r}) for module in (webtext_run, webtext_prep))\n"
        "from webtext_run.command import main; sys.exit(main())"
    )

    def pipeline(*words):
        command = [sys.executable, "-c", program, "own_text", "--input", "texts", *words]
        environment = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    refused = pipeline()
    assert refused.returncode == 2
    assert "the trainer is not installed: pip install 'webtext-gpt2[train]', or stop before it" in refused.stderr
    done = pipeline("--until", "tokenize", "--set", "train-tokenizer.vocabulary_size=300")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "own_text" / "corpus_text_document.idx").is_file()
