"""Plugins are found by looking into a folder: one file added is one plugin more."""

import abc
import sys
import types

import pytest

from command_kit import CommandError
from command_kit.plugins import find_plugins


class Animal(abc.ABC):
    @abc.abstractmethod
    def sound(self) -> str: ...


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A package whose modules are the files of a folder."""
    package = types.ModuleType("zoo")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "zoo", package)
    monkeypatch.setitem(sys.modules, "animals", types.SimpleNamespace(Animal=Animal))
    yield package
    for name in [name for name in sys.modules if name.startswith("zoo.")]:
        del sys.modules[name]


def write(folder, name: str, *classes: str) -> None:
    lines = ["from animals import Animal"]
    for entry in classes:
        lines += [f"class {entry}(Animal):", "    def sound(self): return ''"]
    (folder / f"{name}.py").write_text("\n".join(lines) + "\n")


def test_each_file_adds_its_classes_in_order(zoo, tmp_path):
    write(tmp_path, "b", "Zebra", "Ant")
    write(tmp_path, "a", "Cat")
    assert [found.__name__ for found in find_plugins(zoo, Animal)] == ["Cat", "Zebra", "Ant"]


def test_what_a_module_only_imports_or_leaves_abstract_does_not_count(zoo, tmp_path):
    write(tmp_path, "a", "Cat")
    (tmp_path / "b.py").write_text("from animals import Animal\nfrom zoo.a import Cat\nclass Half(Animal): pass\n")
    assert [found.__name__ for found in find_plugins(zoo, Animal)] == ["Cat"]


def test_a_module_that_does_not_import_is_named(zoo, tmp_path):
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(CommandError, match=r"can't import zoo\.broken \(ModuleNotFoundError: .*no_such_module"):
        find_plugins(zoo, Animal)
