"""The project itself: that it installs everywhere, and holds nothing of the machine that it was written on."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("pipelines/*.py")])
WORKSPACE = {"webtext-gpt2", *(f"webtext-gpt2-{part}" for part in ("kit", "tokens", "prep", "audit", "train"))}


def pins() -> dict[str, str]:
    """Package to pinned version, of those whose markers hold here."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    found = {}
    for requirement in map(Requirement, table):
        if requirement.marker is None or requirement.marker.evaluate():
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            found[requirement.name.lower().replace("_", "-")] = specifier.version
    return found


def test_every_installed_package_is_pinned_and_in_that_version():
    """Pitfall 1: pinned packages no longer existed, and one was needed only by code that nobody ran."""
    pinned = pins()
    installed = {
        distribution.name.lower().replace("_", "-").replace(".", "-"): distribution.version
        for distribution in importlib.metadata.distributions(path=[sysconfig.get_paths()["purelib"]])
    }
    installed = {name: version for name, version in installed.items() if name not in WORKSPACE | {"pip"}}
    assert "tensorflow" not in installed
    assert {name for name in installed if name not in pinned} == set()
    assert {n: v for n, v in installed.items() if v.split("+")[0] != pinned[n].split("+")[0]} == {}


def needed_by(names: Iterable[str]) -> set[str]:
    """The installed packages that these need, without extras."""
    found, todo = set(), list(names)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name not in found and (name in WORKSPACE or name in pins()):
            found.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or ())
            todo += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def test_users_install_no_development_tools():
    """The quickstart's command installed 212 packages, Ray, W&B and megatron-core among them, where 126 do."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["uv"]["default-groups"] == []
    needed = needed_by(Requirement(text).name for text in project["project"]["dependencies"])
    assert {"torch", "ftfy", "langdetect", "newspaper3k", "tldextract", "datasketch", "zstandard"} <= needed
    tools = {"ray", "wandb", "moto", "mypy", "megatron-core", "transformers", "openai", "pytest", "datasets", "boto3"}
    assert needed & tools == set()


def test_no_private_module_of_torch_is_imported():
    """Pitfall 2: the code was tied to private modules of one PyTorch version."""
    private = []
    for path in (path for path in SOURCES if "torch" in path.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            private += [
                f"{path.name}: {name}"
                for name in names
                if name.startswith("torch.") and any(part.startswith("_") for part in name.split("."))
            ]
    assert private == []


def test_nothing_of_ours_needs_a_compiler():
    """Pitfall 3: a C++ extension no longer compiled."""
    endings = {path.suffix for path in (ROOT / "packages").rglob("*") if path.is_file()}
    assert not endings & {".cpp", ".c", ".cu", ".pyx", ".so", ".rs"}
    for path in ROOT.glob("packages/*/pyproject.toml"):
        assert tomllib.loads(path.read_text())["build-system"]["build-backend"] == "uv_build"


def test_no_path_is_written_into_a_source_file():
    """Pitfall 4: corpus and checkpoint paths were edited into source files."""
    absolute = re.compile(r"""["'](/(?!dev/|proc/|usr")[a-z]+/[^"']*|[A-Z]:\\\\[^"']*|~/[^"']*)["']""")
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if absolute.search(line)
    ]
    assert found == []


def test_the_two_sides_never_import_each_other():
    """Either can be installed without the other; what one asks of the other it asks by its command."""
    imported = {"webtext_prep": r"gpt2_train", "gpt2_train": r"webtext_prep"}
    for path in SOURCES:
        side = next((name for name in imported if f"{name}/src" in path.as_posix()), None)
        if side is not None:
            found = re.search(
                rf"^\s*(from|import) {imported[side]}\b|import_module\(.{imported[side]}", path.read_text("utf-8"), re.M
            )
            assert found is None, path


def test_no_source_unpickles_evaluates_or_starts_a_shell():
    """Pitfall 27: checkpoints held pickled objects."""
    forbidden = re.compile(
        r"(?<![.\w])(eval|exec)\(|shell=True|os\.system|pickle\.loads?\(|allow_pickle=True|torch\.load\((?![^\n]*weights_only=True)"
    )
    assert [path for path in SOURCES if forbidden.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("command", [["webtext", "--help"], ["gpt2", "--help"]])
def test_help_answers_without_loading_what_is_heavy(command):
    """Asking for help must not cost the seconds that torch takes to import."""
    code = (
        "import sys\n"
        f"from {'webtext_prep' if command[0] == 'webtext' else 'gpt2_train'}.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'trafilatura', 'newspaper', 'aiohttp', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert command[0] in done.stdout


def test_no_file_names_a_package_index():
    host = re.compile(r"(registry = |index-url[ =]|default-index[ =]).?https?://|https?://[^ \"]*/simple/?\"")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    texts = [path for name in tracked if (path := ROOT / name).suffix in {".toml", ".md", ".py", ".lock", ".txt"}]
    assert [path.name for path in texts if path.is_file() and host.search(path.read_text(encoding="utf-8"))] == []


def test_no_group_of_a_regular_expression_repeats_possessively() -> None:
    """Python 3.11 before 3.11.5 matches such groups wrongly (gh-106052), and atomic groups rightly."""
    repeated = re.compile(r"(?<!\\)\)(?:[*+?]|\{[0-9,]+\}|\{\{[0-9,]+\}\})\+")
    assert repeated.search(r"(?:ab)*+") and repeated.search(r"(?:ab){{0,7}}+") and not repeated.search(r"(?>(?:a++)*)")
    for source in (ROOT / "packages").rglob("*.py"):
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
            assert not repeated.search(re.sub(r"\[[^]]*\]", "[]", line)), f"{source}:{number}"
