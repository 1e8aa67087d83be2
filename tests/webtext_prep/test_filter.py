"""`webtext filter`: a function of one's own decides, an edited one decides again, a wrong one is named by its line."""

import hashlib
import importlib
import json
import sys
import types

import pytest

from webtext_prep.documents.document import Document
from webtext_prep.documents.functions import sources_of


@pytest.fixture
def folder(write_shards):
    return write_shards(
        [[Document("http://a", "short"), Document("http://b", "long " * 100, {"title": "B"})], ["one", "two"]]
    )


@pytest.fixture
def function(tmp_path):
    """`function(source)` writes a file with a function `keep` and gives the value of --function."""

    def write(source: str) -> str:
        (tmp_path / "my_filters.py").write_text(source)
        return f"{tmp_path / 'my_filters.py'}:keep"

    return write


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_decides_with_reasons_of_its_own(webtext, folder, function, read_shards, tmp_path, workers):
    name = function(
        "def keep(document):\n"
        "    if len(document.text) > 100:\n"
        "        return 'very_long'\n"
        "    return document.text != 'two'\n"
    )
    done = webtext(
        "filter", "--input", folder, "--output", tmp_path / "out", "--function", name, "--json", "--workers", workers
    )
    assert done.json["dropped"] == {"filtered": 1, "very_long": 1}
    assert [document.text for document in read_shards(tmp_path / "out")] == ["short", "one"]


def test_an_edited_function_runs_again(webtext, folder, function, read_shards, tmp_path):
    """After an edit the stale result counted as done."""
    command = ["filter", "--input", folder, "--output", tmp_path / "out", "--json", "--workers", 1, "--function"]
    name = function("def keep(document):\n    return True\n")
    assert webtext(*command, name).json["out"] == 4
    assert webtext(*command, name).json["resumed"]
    function("def keep(document):\n    return len(document.text) > 3\n")
    again = webtext(*command, name).json
    assert (again["resumed"], again["out"]) == (False, 2)
    assert [document.text for document in read_shards(tmp_path / "out")] == ["short", "long " * 100]


def test_the_file_of_a_function_may_have_a_name_that_is_not_utf8(webtext, folder, latin):
    (latin / "mine.py").write_text("def keep(document):\n    return True\n")
    command = ["filter", "--input", folder, "--output", latin / "out", "--function", f"{latin / 'mine.py'}:keep"]
    assert webtext(*command, "--json", "--workers", 1).json["out"] == 4


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`package(file, source)` writes a file of a package `mine`, which the next command imports anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine").mkdir()

    def write(name: str, source: str) -> None:
        (tmp_path / "mine" / name).write_text(source)
        importlib.invalidate_caches()
        for module in [module for module in sys.modules if module.partition(".")[0] == "mine"]:
            del sys.modules[module]

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within one second and of one size
    yield write
    write("__init__.py", "")


DECORATED = "from mine.decorators import logged\n\n@logged\ndef keep(document):\n    return True\n"
WRAPPER = "import functools\ndef logged(function):\n    @functools.wraps(function)\n    def call(document):\n"


@pytest.mark.parametrize(
    ("named", "files", "edited", "source"),
    [
        (
            "mine:keep",
            {"__init__.py": "from mine.rules import keep\n", "rules.py": "def keep(document):\n    return True\n"},
            "rules.py",
            "def keep(document):\n    return document.text != 'one'\n",
        ),
        (
            "mine.pages:keep",
            {"pages.py": DECORATED, "decorators.py": f"{WRAPPER}        return function(document)\n    return call\n"},
            "pages.py",
            DECORATED.replace("True", "document.text != 'one'"),
        ),
        (
            "mine.pages:keep",
            {"pages.py": DECORATED, "decorators.py": f"{WRAPPER}        return function(document)\n    return call\n"},
            "decorators.py",
            f"{WRAPPER}        return document.text != 'one'\n    return call\n",
        ),
        (
            "mine.pages:keep",
            {
                "pages.py": "def keep(document):\n    from . import lists\n    return lists.ok(document)\n",
                "lists.py": "from .words import BAD\ndef ok(document):\n    return document.text not in BAD\n",
                "words.py": "BAD = ()\n",
            },
            "words.py",
            "BAD = ('one',)\n",
        ),
        (
            "mine.pages:keep",
            {"pages.py": "class Keep:\n    def __call__(self, document):\n        return True\nkeep = Keep()\n"},
            "pages.py",
            "class Keep:\n    def __call__(self, document):\n        return document.text != 'one'\nkeep = Keep()\n",
        ),
    ],
    ids=["re-exported", "decorated", "decorator", "imported", "object"],
)
def test_an_edit_counts_wherever_the_function_is_defined(
    webtext, folder, package, read_shards, tmp_path, named, files, edited, source
):
    """The file of the module that was named was watched: an edit of a function that it imports from another module, of
    a decorator, or of a table next to them was "already done", with the old output."""
    command = ["filter", "--input", folder, "--output", tmp_path / "out", "--json", "--workers", 1]
    for name, content in {"__init__.py": "", **files}.items():
        package(name, content)
    assert webtext(*command, "--function", named).json["out"] == 4
    package("other.py", "")
    assert webtext(*command, "--function", named).json["resumed"], "no module of its own has changed"
    package(edited, source)
    again = webtext(*command, "--function", named).json
    assert (again["resumed"], again["out"]) == (False, 3)
    assert "one" not in [document.text for document in read_shards(tmp_path / "out")]


def test_of_installed_packages_its_own_modules_count(tmp_path):
    """Others next to it in the same folder are other packages: an edit there is an upgrade."""
    site = tmp_path / "site-packages"
    for name in ("mine/__init__.py", "mine/words.py", "theirs.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("import theirs, mine.words, json\nfrom . import nothing\n")
    (tmp_path / "keep.py").write_text("import theirs\ndef keep(document):\n    return True\n")
    (tmp_path / "theirs.py").write_text("1 +\n")
    module = types.SimpleNamespace(__file__=str(site / "mine" / "__init__.py"))
    assert sources_of(bool, module) == [site / "mine" / "__init__.py", site / "mine" / "words.py"]
    module.__file__ = str(tmp_path / "keep.py")
    assert sources_of(bool, module) == [tmp_path / "keep.py", tmp_path / "theirs.py"]


def test_a_single_file_has_the_digest_that_it_always_had(webtext, folder, function, tmp_path):
    source = "import json\ndef keep(document):\n    return True\n"
    webtext("filter", "--input", folder, "--output", tmp_path / "out", "--function", function(source), "--workers", 1)
    settings = json.loads((tmp_path / "out" / "stage.json").read_text())["settings"]
    assert settings["function_sha256"] == hashlib.sha256(source.encode()).hexdigest()


def test_a_module_can_be_named(webtext, folder, tmp_path, monkeypatch):
    (tmp_path / "filters_of_mine.py").write_text("def keep(document):\n    return document.text == 'one'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = webtext(
        "filter", "--input", folder, "--output", tmp_path / "out", "--function", "filters_of_mine:keep",
        "--json", "--workers", 1,
    )  # fmt: skip
    sys.modules.pop("filters_of_mine", None)
    assert done.json["out"] == 1


@pytest.mark.parametrize(
    ("source", "sentence", "workers"),
    [
        ("def keep(document):\n    return 1 / 0\n", "my_filters.py, line 2: ZeroDivisionError: division by zero", 1),
        ("def keep(document):\n    pass\n", "my_filters.py, line 1: keep returned None for document", 1),
        ("import no_such\n", "my_filters.py, line 1: ModuleNotFoundError: No module named 'no_such'", 1),
        ("def keep(document)\n", "my_filters.py, line 1: SyntaxError: expected ':'", 1),
        ("def other(document): pass\n", "my_filters.py has no function keep", 1),
        ("def keep(document):\n    raise SystemExit(0)\n", "my_filters.py, line 2: SystemExit: 0", 2),
        ("import sys\nsys.exit(0)\n", "my_filters.py, line 2: SystemExit: 0", 1),
        (
            "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\n"
            "def keep(document):\n    raise Mute\n",
            "my_filters.py, line 5: Mute: no message",
            2,
        ),
    ],
)
def test_a_wrong_function_is_named_with_its_file_and_line(
    webtext, folder, function, tmp_path, source, sentence, workers
):
    """An error in a filter was an internal error, and one that left by sys.exit(0) looked like success."""
    name = function(source)
    command = ["filter", "--input", folder, "--output", tmp_path / "out", "--function", name, "--workers", workers]
    result = webtext(*command)
    assert result.code == 2
    assert sentence in result.sentence
    assert not (tmp_path / "out" / "stage.json").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "needs --function FILE.py:NAME"),
        ("keep", "keep is not a function's name"),
        ("nowhere.py:keep", "no file nowhere.py"),
        ("no.such.module:keep", "no module no.such.module"),
    ],
)
def test_a_name_that_leads_nowhere_is_said_before_anything_is_done(webtext, folder, tmp_path, name, sentence):
    result = webtext("filter", "--input", folder, "--output", tmp_path / "out", "--function", name)
    assert result.code == 2
    assert sentence in result.sentence
    assert not (tmp_path / "out").exists()


def test_a_finished_stage_tells_the_whole_funnel_before_it(webtext, folder, function, tmp_path):
    """What a stage had read was recorded nowhere."""
    name = function("def keep(document):\n    return document.text != 'two'\n")
    first, second, third = (tmp_path / stage for stage in ("shout", "filter", "dedup"))
    webtext("shout", "--input", folder, "--output", first, "--workers", 1)
    webtext("filter", "--input", first, "--output", second, "--function", name, "--workers", 1)
    webtext("dedup", "--input", second, "--output", third, "--workers", 1)
    record = json.loads((third / "stage.json").read_text())
    (before,) = record["inputs"]
    (earliest,) = before["inputs"]
    assert [entry["stage"] for entry in (record, before, earliest)] == ["dedup", "filter", "shout"]
    assert [entry["in"] for entry in (record, before, earliest)] == [4, 4, 4]
    assert earliest["inputs"] == [{"files": 2}]
    assert str(tmp_path) not in json.dumps(record["inputs"][0]["inputs"])
