"""Plugins are found by looking into a folder: one file added is one plugin more."""

import abc
import re
import sys
import types

import pytest

import gpt2_train.cli
import webtext_prep.cli
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


def announce(folder, package: str, points: str) -> None:
    """An installed distribution with such entry points."""
    (folder / f"{package}-1.dist-info").mkdir()
    (folder / f"{package}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (folder / f"{package}-1.dist-info" / "entry_points.txt").write_text(points)


def test_two_packages_may_announce_under_one_name(zoo, tmp_path, monkeypatch):
    """The one that was installed first was lost without a word."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, kind in (("first", "Cat"), ("second", "Dog")):
        write(tmp_path, f"{name}_animals", kind)
        announce(tmp_path, name, f"[zoo.animals]\nanimal = {name}_animals:{kind}\n")
    empty = types.ModuleType("empty")
    empty.__path__ = []
    found = find_plugins(empty, Animal, group="zoo.animals")
    assert sorted(kind.__name__ for kind in found) == ["Cat", "Dog"]


@pytest.mark.parametrize("main", [gpt2_train.cli.main, webtext_prep.cli.main])
def test_a_command_of_another_package_that_does_not_import_is_a_sentence(main, tmp_path, monkeypatch, capsys):
    """`gpt2 doctor` ended in a traceback for a package that it does not need."""
    announce(tmp_path, "other", "[gpt2.commands]\nother = no_such_module\n[webtext.commands]\nother = no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--help"]) == 1
    assert re.fullmatch(
        r"\w+: error: can't import entry point other of .*: fix or remove it\.\n", capsys.readouterr().err
    )


def test_a_command_of_gpt2_needs_no_other_package(tmp_path, monkeypatch):
    announce(tmp_path, "other", "[gpt2.commands]\nother = no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        gpt2_train.cli.main(["doctor", "--help"])
