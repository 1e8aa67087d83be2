"""The command line: what is printed where, settings from flags and files, and what is said of wrong ones."""

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_kit.parsing import version_of
from command_kit.settings import flag_name, removed_settings
from webtext_prep import commands
from webtext_prep.cli import find_commands, find_stages
from webtext_prep.extraction.extractors import EXTRACTORS
from webtext_prep.running.settings import RunSettings
from webtext_prep.text.languages import known_detectors

WEBTEXT = Path(sys.executable).with_name("webtext")


@pytest.fixture
def pages(write_shards):
    return write_shards([["one", "two"], ["three"]])


@pytest.fixture
def run(webtext, pages, tmp_path):
    """`run(...)` is `webtext shout` over three documents with those further arguments."""
    return lambda *arguments: webtext(
        "shout", "--input", pages, "--output", tmp_path / "out", "--workers", 1, *arguments
    )


# What is printed


def test_json_is_one_object_and_the_only_thing_on_standard_output(pages, tmp_path):
    arguments = ["clean", "--input", pages, "--output", tmp_path / "out", "--min-tokens", "1", "--language", "any"]
    done = subprocess.run([WEBTEXT, *arguments, "--workers", "1", "--json"], capture_output=True, text=True)
    assert done.returncode == 0
    summary = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    expected = {"stage": "clean", "in": 3, "out": 3, "dropped": {}, "resumed": False, "output": str(tmp_path / "out")}
    assert expected.items() <= summary.items()
    assert summary["seconds"] >= 0
    assert "documents in" in done.stderr


def test_without_json_standard_output_stays_empty_and_the_table_is_shown(run):
    result = run()
    assert (result.code, result.out) == (0, "")
    assert "documents in" in result.err


def test_a_second_run_says_that_all_is_done_already(run):
    assert run("--json").json["resumed"] is False
    assert run("--json").json["resumed"] is True
    assert "already done" in run().err


def test_an_error_leaves_standard_output_empty_even_with_json(webtext, tmp_path):
    result = webtext("shout", "--input", tmp_path / "absent", "--output", tmp_path / "out", "--json")
    assert result.code == 2
    assert "no file or folder" in result.sentence


def test_help_lists_the_stages_in_the_order_in_which_a_document_passes_them(webtext):
    shown = webtext("--help").out
    names = list(find_stages())
    assert names.index("blacklist") < names.index("merge") < names.index("clean") < names.index("tokenize")
    places = [shown.index(f"\n    {name}") for name in names]
    places += [shown.index(f"\n\n  {heading}:\n    {first} ") for heading, first in (("look at it", "inspect"),)]
    assert places == sorted(places)
    assert "\n\n  get documents:\n    urls " in shown and "\n\n  make a corpus:\n    merge " in shown


@pytest.mark.parametrize("stage", find_stages())
def test_every_setting_of_every_stage_is_explained(webtext, stage):
    shown = webtext(stage, "--help")
    assert shown.code == 0
    fields = [field.name for field in dataclasses.fields(find_stages()[stage])]
    for name in ("input", "output", "workers", "config", "json", "restart", *fields):
        assert f"--{name.replace('_', '-')}" in shown.out


@pytest.mark.parametrize("command", find_commands())
def test_every_setting_of_every_command_is_explained(webtext, command):
    shown = webtext(command, "--help")
    assert shown.code == 0
    for field in dataclasses.fields(find_commands()[command]):
        name = field.metadata["metavar"] if field.metadata["positional"] else f"--{field.name.replace('_', '-')}"
        assert name in shown.out


COUNT_COMMAND = '''
"""`webtext count`: how many files some folders hold."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from command_kit import setting
from webtext_prep.commands import Command
from webtext_prep.running.summary import Findings


@dataclass(frozen=True)
class Count(Command):
    """Count files."""

    name: ClassVar[str] = "count"
    order: ClassVar[int] = 90
    summary: ClassVar[str] = "folders -> how many files they hold"

    folders: tuple[str, ...] = setting((), "folders", metavar="DIR", positional=True)
    suffix: str = setting("", "only files of this suffix")

    def find(self) -> Findings:
        """The number."""
        found = sum(len(list(Path(folder).glob(f"*.*{self.suffix}"))) for folder in self.folders)
        return Findings(f"{found} files", {"files": found})
'''


def test_a_command_is_added_in_one_file(webtext, plugin, tmp_path):
    plugin(commands, "count", COUNT_COMMAND)
    config = tmp_path / "settings.toml"
    config.write_text(f'[count]\nfolders = ["{tmp_path / "plugins"}"]\n')
    assert webtext("count", tmp_path / "plugins", tmp_path / "plugins", "--suffix", "py").out == "2 files\n"
    assert webtext("count", "--json").json == {"files": 0}
    assert webtext("count", "--json", "--config", config).json == {"files": 1}


# Flags and files


def test_paths_may_come_from_the_file(webtext, pages, tmp_path):
    """Pitfall 4: corpus paths were edited into source files."""
    config = tmp_path / "shout.toml"
    config.write_text(f'input = ["{pages}"]\noutput = "{tmp_path / "out"}"\nworkers = 1\n')
    assert webtext("shout", "--config", config, "--json").json["in"] == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('makr = "?"', "unknown setting makr (did you mean mark?)"),
        ("zzz = 1", "unknown setting zzz; known are input, output, workers, format, engine, state,"),
        ("[shuot]\nmark = 1", "no table [shout] among the settings: did you mean [shout] by [shuot]?"),
        ("mark = ", "is not valid TOML"),
    ],
)
def test_a_wrong_settings_file_is_named_with_what_to_write(run, tmp_path, text, sentence):
    config = tmp_path / "settings.toml"
    config.write_text(text)
    result = run("--config", config)
    assert result.code == 2
    assert sentence in result.sentence
    assert str(config) in result.sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--unknown"], ["--workers", "two"], ["--resume", "--restart"]])
def test_a_wrong_flag_is_bad_usage(run, arguments):
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert arguments[0] in result.err


def test_a_command_that_does_not_exist_is_bad_usage(webtext):
    assert webtext("claen").code == 2
    assert webtext().code == 2


def test_several_inputs_are_all_read_however_they_are_given(webtext, write_shards, tmp_path):
    """Pitfall 25: flags that were accepted and ignored."""
    folders = [write_shards([["x"]], name=name) for name in ("a", "b", "c")]
    together = webtext("shout", "--input", *folders, "--output", tmp_path / "1", "--json").json
    one_by_one = ["--input", folders[0], "--input", folders[1], "--input", folders[2]]
    assert webtext("shout", *one_by_one, "--output", tmp_path / "2", "--json").json["in"] == together["in"] == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--output", "out"], "webtext shout needs --input PATH: say what to read (document shards"),
        (["--input", "input"], "webtext shout needs --output DIR: say where to write"),
        (["--input", "", "--output", "out"], "an empty path was given as input"),
        (["--input", "-", "--output", "out"], "webtext shout does not read standard input"),
        (["--input", "input", "--output", "input"], "input and output are the same"),
        (["--input", "input", "--output", "file"], "file is a file: give a folder"),
        (["--input", "input", "--output", "file/below"], "lies below a file: choose another path."),
        (["--input", "input", "--output", "out", "--workers", "-1"], "--workers must not be negative"),
        (["--input", "file", "--output", "out"], "file has the wrong suffix: here document shards"),
    ],
)
def test_wrong_paths_are_one_sentence(webtext, pages, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    assert sentence in webtext("shout", *arguments).sentence
    assert Path("file").read_text() == "mine"
    assert not Path("out").exists()


# Standard input


@pytest.fixture
def piped(webtext, tmp_path, monkeypatch):
    """`piped(text, ...)` is `webtext blacklist` with that standard input."""

    def run(content, *arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        return webtext("blacklist", "--output", tmp_path / "out", *arguments, "--json")

    return run


def test_standard_input_is_read_when_nothing_else_is_given_and_the_same_again_is_done_already(piped):
    assert piped("http://a.org/1\nhttp://b.org/2\n").json["in"] == 2
    again = piped("http://a.org/1\nhttp://b.org/2\n", "--input", "-").json
    assert (again["in"], again["resumed"]) == (2, True)


def test_an_empty_standard_input_is_an_error(piped):
    """Pitfall 5: no input is an error."""
    assert "no URLs in the input" in piped("").sentence


def test_standard_input_into_a_folder_with_other_files_leaves_no_trace(piped, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    for _ in range(2):
        assert "holds other files (precious): give an empty or new folder" in piped("http://a.org/1\n").sentence
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_token_files_of_somebody_else_are_not_written_over(webtext, pages, tmp_path):
    (tmp_path / "corpus_text_document.bin").write_bytes(b"mine")
    result = webtext("tokenize", "--input", pages, "--output", tmp_path / "corpus")
    assert "corpus_text_document.bin in" in result.sentence
    assert "were not made by this command" in result.sentence
    assert (tmp_path / "corpus_text_document.bin").read_bytes() == b"mine"


def test_the_version_and_help_come_without_what_takes_long_to_load():
    """`webtext --version` imported every stage, and numpy, tiktoken and pyarrow's readers with them. No command line
    needs numba, of which the import takes most of a second, extractors or the page of a report."""
    code = (
        "import sys; from webtext_prep import cli\n"
        "try:\n    cli.main(['--version'])\nexcept SystemExit:\n"
        "    print({'numpy', 'tiktoken', 'webtext_prep.stages.clean'} & set(sys.modules))\n"
        "cli.build_parser(cli.find_stages(), cli.find_commands())\n"
        "heavy = {'numba', 'datasketch', 'aiohttp', 'trafilatura', 'newspaper', 'resiliparse', 'lxml'}\n"
        "print((heavy | {'command_kit.charts.drawing', 'webtext_audit.report.page'}) & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("\nset()\nset()\n")


# What is mistyped


@pytest.mark.parametrize(
    ("words", "prog", "sentence"),
    [
        (["clean", "--min-tokenz", "64"], "webtext clean", "--min-tokenz (did you mean --min-tokens?)"),
        (["clean", "--min_tokens=64"], "webtext clean", "--min_tokens=64 (did you mean --min-tokens?)"),
        (["clean", "--zzz"], "webtext clean", "--zzz; `webtext clean --help` lists its flags"),
        (["clena"], "webtext", "there is no command clena (did you mean clean?)"),
        (["clean", "--engine", "rya"], "webtext clean", "did you mean ray? choose from local, ray)"),
        (["clean", "--format", "docx"], "webtext clean", "choose from jsonl, jsonl.zst, jsonl.gz, parquet)"),
        (["clean", "--language-detector", "langdetct"], "webtext clean", "did you mean langdetect? choose from"),
        (["clean", "--rules", "c4,gopher-qualty"], "webtext clean", "invalid choice: 'c4,gopher-qualty' (did you mean"),
        (["dedup", "--against-loses", "both"], "webtext dedup", "choose from new, old, shorter)"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest_and_the_usage_of_its_command(webtext, words, prog, sentence):
    """A wrong flag got the usage of `webtext` and no suggestion, a wrong command twenty names to choose from, and a
    wrong value of a closed set no list where the set was one of plugins."""
    result = webtext(*words)
    assert result.code == 2
    usage, error = result.err.splitlines()
    assert usage.startswith(f"usage: {prog} [flags]")
    assert error.startswith(f"{prog}: error: ")
    assert sentence in error


WENT = [("shout", name, gone.instead) for name, gone in RunSettings.REMOVED.items()] + [
    (command, name, gone.instead)
    for command, kind in {**find_stages(), **find_commands()}.items()
    for name, gone in removed_settings(kind).items()
]


@pytest.mark.parametrize(("command", "name", "instead"), WENT, ids=lambda value: value[:40])
def test_what_went_is_answered_with_what_to_use(webtext, command, name, instead):
    setting, _, value = name.partition(" ")
    result = webtext(command, flag_name(setting), value or 1)
    assert (result.code, result.out) == (2, "")
    assert f"{' '.join([flag_name(setting), value]).strip()} is gone: {instead}" in result.err


def test_several_rules_may_be_given_in_one_word(webtext, pages, tmp_path):
    arguments = ["clean", pages, "--output", tmp_path / "out", "--language", "any", "--min-tokens", 1, "--workers", 1]
    found = webtext(*arguments, "--rules", "c4,fineweb", "--restart")
    assert "invalid choice" not in found.err


def test_alone_the_command_shows_its_help(webtext):
    """`webtext` alone said that COMMAND is required, and not which commands there are."""
    result = webtext()
    assert (result.code, result.out) == (2, "")
    assert "documents -> repaired documents" in result.err


def test_help_begins_with_what_is_the_commands_own_and_ends_with_engines(webtext):
    """A stage's own settings stood below those of every stage, and the first ones shown were those of an engine."""
    shown = webtext("clean", "--help").out
    places = [shown.index(word) for word in ("--min-tokens", "--workers", "--config", "--ray-address")]
    assert places == sorted(places)


def test_no_line_of_a_description_is_indented(webtext):
    """The second line of a command's description was indented as in its source."""
    shown = webtext("clean", "--help").out
    assert "\napply quality rules in the order given." in shown


def test_the_libraries_of_a_stage_are_those_that_its_settings_ask():
    """An output depended on no library: an upgrade of an extractor went unnoticed."""
    stages = find_stages()
    clean, extract = stages["clean"], stages["extract"]
    assert set(clean(fix_text=False, language="any").libraries) == {"tiktoken"}
    assert set(clean(language_detector="py3langid").libraries) == {"ftfy", "py3langid", "tiktoken"}
    assert "lxml" in stages["download"]().libraries
    assert {"trafilatura", "lxml"} <= set(stages["download"](extractor="trafilatura").libraries)
    assert "trafilatura" not in extract(extractor="resiliparse").libraries
    used = [
        *(clean(language_detector=name).libraries for name in known_detectors()),
        *(extract(extractor=name).libraries for name in EXTRACTORS),
        *(stage.libraries for stage in stages.values() if isinstance(stage.libraries, tuple)),
    ]
    names = {name for libraries in used for name in libraries}
    assert [name for name in names if not version_of(name)] == []
