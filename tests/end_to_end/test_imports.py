"""No circles among modules, those for types alone included, and no folder that uses one above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/src/*/__init__.py"))

ROOMS = {
    "webtext_prep": [
        "cli", "commands", "stages", "crawl", "extraction", "opt_outs", "dedup", "tokens", "reddit", "running", "text",
        "documents", "urls", "storage", "compiled", "errors",
    ],
    "gpt2_train": [
        "training", "serving", "evaluation", "inference", "conversion", "metrics", "data", "checkpoint", "optim",
        "distributed", "model", "torch_private", "config",
    ],
}  # fmt: skip
"""Folders and modules of a package from the top down: each may use those after it."""


def modules_of(package: str) -> dict[str, Path]:
    """Every module of a package by its name."""
    source = ROOT / "packages" / package / "src"
    return {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (source / package).rglob("*.py")
    }


def imported_names(path: Path, module: str) -> Iterator[str]:
    """Everything that a module imports, anywhere in it: `a.b` for `import a.b`, `a.b.c` for `from a.b import c`."""
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = folder.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def imports_of(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Module to the modules among `modules` that it imports."""
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        targets = set()
        for name in imported_names(path, module):
            owner = next((owner for owner in (name, name.rpartition(".")[0]) if owner in modules), None)
            if owner is not None:
                targets.add(owner)
        # What re-exports its own parts is not a circle of them.
        found[module] = targets - {module}
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Each group of modules that import each other, directly or through others."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [*imports[start]]
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += imports[module]
        return seen

    reached = {module: reachable(module) for module in imports}
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }
    return sorted(sorted(group) for group in groups)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_one_that_imports_it(package):
    """Modules could only be read, and types only be checked, all at once."""
    assert circles(imports_of(modules_of(package))) == []


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_uses_one_above_it(package):
    """Fetching knew the runner, and the runner the stages: no part could be moved without the others."""
    rooms, upward = ROOMS[package], []
    for module, targets in imports_of(modules_of(package)).items():
        for target in targets:
            here, there = (name.split(".")[1] if "." in name else "" for name in (module, target))
            if here in rooms and there in rooms and rooms.index(there) < rooms.index(here):
                upward.append(f"{module} imports {target}")
    assert sorted(upward) == []


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_its_place(package):
    folder = ROOT / "packages" / package / "src" / package
    assert {path.parent.name for path in folder.glob("*/__init__.py")} <= set(ROOMS[package])


def test_nothing_imports_what_reads_finished_outputs():
    """The core could not be installed, or understood, without the report and the planner."""
    for package in sorted(set(PACKAGES) - {"webtext_audit"}):
        for path in modules_of(package).values():
            assert "webtext_audit" not in path.read_text(encoding="utf-8")


def test_a_circle_is_found(tmp_path):
    sources = {
        "a": "from p.b import thing\n",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import c\n",
        "c": "def late():\n    import p.a\n",
        "d": "from . import a\nfrom .b import thing\n",
    }
    modules = {}
    for name, text in sources.items():
        modules[f"p.{name}"] = tmp_path / f"{name}.py"
        modules[f"p.{name}"].write_text(text)
    found = imports_of(modules)
    assert found["p.d"] == {"p.a", "p.b"}
    assert circles(found) == [["p.a", "p.b", "p.c"]]
