"""One dataclass is flags, TOML keys and documentation; what a user gets wrong is named, with what to do."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_kit import Parser, UsageError, add_flags, setting, settings_from
from command_kit.settings import (
    Removed,
    as_table,
    changes,
    check_limits,
    differences,
    identity,
    make_settings,
    make_several,
    read_toml,
    to_toml,
)


@dataclass(frozen=True)
class Bake:
    """Settings of a command that exists only here."""

    minutes: int = setting(30, "how long")
    heat: float = setting(180.0, "in degrees; 100% is a lot")
    fan: bool = setting(False, "use the fan")
    kind: Literal["bread", "cake"] = setting("bread", "what to bake")
    toppings: tuple[str, ...] = setting((), "what goes on top")
    limit: int | None = setting(None, "stop after so many")
    helpers: int = setting(1, "how many hands", identity=False, group="kitchen")
    layers: int | None = setting(None, "how many layers", ge=1, le=9)
    sugar: float = setting(0.1, "share of sugar", ge=0, lt=1)
    scoops: tuple[float, ...] = setting((), "of ice cream", gt=0)
    book: Path | None = setting(None, "where the recipe stands")  # noqa: RUF009
    shelves: tuple[Path, ...] = setting((), "where to look")

    def __post_init__(self) -> None:
        if self.minutes < 0:
            raise UsageError(f"--minutes must not be negative, but is {self.minutes}.")


def parse(*flags: str, config: object = None, ignore: tuple[str, ...] = ()) -> Bake:
    parser = argparse.ArgumentParser()
    add_flags(parser, Bake)
    return settings_from(Bake, parser.parse_args(flags), command="bake", config=config, ignore=ignore)


@pytest.fixture
def toml(tmp_path):
    def write(text: str):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return path

    return write


def test_every_field_is_a_flag():
    given_flags = [
        "--minutes", "5", "--heat", "200.5", "--fan", "--kind", "cake", "--toppings", "a", "b", "--limit", "3",
    ]  # fmt: skip
    assert parse(*given_flags) == Bake(5, 200.5, True, "cake", ("a", "b"), 3)


def test_every_flag_that_can_be_switched_on_can_be_switched_off(toml):
    """Pitfall 7: the downloader's flags could not be switched off."""
    config = toml("fan = true\n")
    assert parse(config=config).fan
    assert not parse("--no-fan", config=config).fan


def test_a_flag_given_twice_collects_its_values():
    """Pitfall 25: no flag is accepted and ignored."""
    assert parse("--toppings", "a", "b", "--toppings", "c").toppings == ("a", "b", "c")


def test_flags_win_over_the_file_and_the_file_over_the_defaults(toml):
    config = toml("minutes = 7\nheat = 90\n")
    assert parse("--minutes", "8", config=config) == Bake(minutes=8, heat=90.0)


def test_the_file_of_a_whole_pipeline_gives_each_command_its_table(toml):
    assert parse(config=toml("[mix]\nminutes = 1\n[bake]\nminutes = 2\n")).minutes == 2


def test_a_misspelt_table_does_not_pass_for_the_defaults(toml):
    """Pitfall 25: settings that are read and ignored."""
    config = toml("[baek]\nminutes = 2\n")
    with pytest.raises(UsageError, match=r"settings\.toml: no table \[bake\].*did you mean \[bake\] by \[baek\]\?"):
        parse(config=config)
    with pytest.raises(UsageError, match=r"no table \[bake\].*it has \[mix\], \[wash\]"):
        parse(config=toml("[mix]\nminutes = 2\n[wash]\n"))


def test_an_unknown_key_is_named_with_the_nearest_known_one(toml):
    with pytest.raises(UsageError, match=r"settings\.toml: unknown setting minuets \(did you mean minutes\?\)"):
        parse(config=toml("minuets = 7\n"))
    with pytest.raises(UsageError, match="unknown setting zzz; known are minutes, heat"):
        parse(config=toml("zzz = 7\n"))


def test_keys_that_another_reader_of_the_file_knows_are_passed_over_and_suggested(toml):
    assert parse(config=toml('minutes = 2\noutput = "x"\n'), ignore=("output",)).minutes == 2
    with pytest.raises(UsageError, match=r"did you mean output\?"):
        parse(config=toml('outptu = "x"\n'), ignore=("output",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('minutes = "7"', "minutes should be a whole number, not '7'"),
        ("minutes = true", "minutes should be a whole number, not True"),
        ("minutes = 7.5", "minutes should be a whole number, not 7.5"),
        ("heat = [1]", r"heat should be a number, not \[1\]"),
        ("fan = 1", "fan should be true or false, not 1"),
        ('kind = "pie"', "kind should be one of bread, cake, not 'pie'"),
        ("toppings = 3", "toppings should be a list of texts, not 3"),
        ("limit = false", "limit should be a whole number, not False"),
        ("book = 7", "book should be a path, not 7"),
        ("shelves = 3", "shelves should be a list of paths, not 3"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_it_should_be(toml, text, sentence):
    with pytest.raises(UsageError, match=rf"settings\.toml: {sentence}"):
        parse(config=toml(text))


def test_a_path_that_no_settings_file_can_hold_is_named():
    """TOML is UTF-8 and has no way to write another byte: it was an internal error, or a file that can't be read."""
    with pytest.raises(UsageError, match=r'^data = "caf\udce9" is not UTF-8, as a settings file has to be: rename'):
        to_toml({"a": 1, "data": "caf\udce9"})


def test_a_value_that_the_settings_refuse_is_a_usage_error():
    with pytest.raises(UsageError, match="must not be negative, but is -1"):
        parse("--minutes", "-1")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--layers", "0"], "^--layers is 0: it should be at least 1 and at most 9.$"),
        (["--layers", "10"], "^--layers is 10: it should be at least 1 and at most 9.$"),
        (["--sugar", "1"], "^--sugar is 1.0: it should be at least 0 and below 1.$"),
        (["--sugar", "nan"], "^--sugar is nan: it should be at least 0 and below 1 and finite.$"),
        (["--scoops", "1", "0"], "^--scoops is 0.0: it should be above 0.$"),
        (["--scoops", "inf"], "^--scoops is inf: it should be above 0 and finite.$"),
    ],
)
def test_a_number_outside_its_limits_is_named_with_the_limits(flags, sentence):
    with pytest.raises(UsageError, match=sentence):
        parse(*flags)


def test_a_number_outside_its_limits_is_called_by_where_it_came_from(toml):
    config = toml("layers = 0\nsugar = 0.5\n")
    with pytest.raises(UsageError, match=r"settings\.toml: layers is 0: it should be at least 1"):
        parse(config=config)
    with pytest.raises(UsageError, match=r"^--sugar is 2\.0"):
        parse("--layers", "1", "--sugar", "2", config=config)


def test_settings_that_code_made_can_be_checked_too():
    with pytest.raises(UsageError, match=r"^--sugar is 1: it should be at least 0 and below 1.$"):
        check_limits(Bake(sugar=1))


def test_paths_come_from_flags_and_files(toml):
    expected = Bake(book=Path("a/b"), shelves=(Path("c"), Path("d")))
    assert parse("--book", "a/b", "--shelves", "c", "d") == expected
    assert parse(config=toml('book = "a/b"\nshelves = ["c", "d"]\n')) == expected


def test_a_key_above_the_tables_is_not_ignored(toml):
    """A key above the first table was silently ignored once the file had a table for the command."""
    config = toml("minutes = 7\n[bake]\nheat = 90\n")
    with pytest.raises(UsageError, match=r"settings\.toml: minutes is outside a table.*move it below \[bake\]"):
        parse(config=config)


def test_a_file_that_cannot_be_read_says_why(tmp_path, toml):
    with pytest.raises(UsageError, match=r"no settings file .*absent\.toml"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match="can't read the settings file"):
        read_toml(tmp_path)
    with pytest.raises(UsageError, match=r"not valid TOML: .*line 2"):
        read_toml(toml("a = 1\nb = = 2\n"))
    (tmp_path / "bytes.toml").write_bytes(b'a = "\xff"')
    with pytest.raises(UsageError, match="can't read the settings file"):
        read_toml(tmp_path / "bytes.toml")


def test_help_shows_each_default_once_and_percent_signs_as_written(capsys):
    parser = argparse.ArgumentParser(prog="bake")
    add_flags(parser, Bake)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    shown = capsys.readouterr().out
    assert "how long (default: 30)" in shown
    assert "100% is a lot (default: 180.0)" in " ".join(shown.split())
    assert "use the fan (default: no)" in " ".join(shown.split())
    assert "what goes on top\n" in shown
    assert "kitchen:" in shown
    assert "how many layers (at least 1 and at most 9)" in " ".join(shown.split())
    assert "share of sugar (at least 0 and below 1; default: 0.1)" in " ".join(shown.split())


settings = st.builds(
    Bake,
    minutes=st.integers(0, 2**60),
    heat=st.floats(allow_nan=False),
    fan=st.booleans(),
    kind=st.sampled_from(["bread", "cake"]),
    toppings=st.lists(st.text(st.characters(exclude_categories=("Cs",)))).map(tuple),
    limit=st.none() | st.integers(-(2**60), 2**60),
    book=st.none() | st.just(Path("a/b")),
    shelves=st.lists(st.sampled_from([Path("c"), Path("/d")])).map(tuple),
)


@given(settings)
def test_settings_survive_the_way_through_a_file(chosen):
    import tomllib

    assert make_settings(Bake, tomllib.loads(to_toml(as_table(chosen))), "here") == chosen


def test_what_only_says_how_the_work_is_done_is_no_part_of_the_identity():
    assert identity(Bake(helpers=4)) == identity(Bake(helpers=1))
    assert identity(Bake(minutes=4)) != identity(Bake(minutes=1))


def test_differences_are_said_in_words():
    assert differences({"a": 1, "b": "x"}, {"a": 2, "b": "x", "c": None}) == ["a was 1, now 2"]
    assert differences({}, {"kind": "cake"}) == ["kind was not set, now 'cake'"]


@dataclass(frozen=True)
class Door:
    open_to: Literal["nobody", "friends", "all"] | bool = setting(False, "who may come in")


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ([], False),
        (["--open-to"], True),
        (["--no-open-to"], False),
        (["--open-to", "friends"], "friends"),
        (["--open-to", "--no-open-to"], False),
    ],
)
def test_a_switch_may_take_values_too(toml, flags, value):
    """A switch could only be on or off, so that a third state needed another flag."""

    def read(*arguments, config=None):
        parser = argparse.ArgumentParser()
        add_flags(parser, Door)
        return settings_from(Door, parser.parse_args(arguments), command="door", config=config).open_to

    assert read(*flags) is value or read(*flags) == value
    assert read(config=toml("open_to = true")) is True
    assert read(config=toml("open_to = 'friends'")) == "friends"
    with pytest.raises(UsageError, match="true, false, or one of nobody, friends, all"):
        read(config=toml("open_to = 'burglars'"))
    with pytest.raises(SystemExit):
        read("--open-to", "burglars")


@dataclass(frozen=True)
class Sized:
    size: int | Literal["auto"] = setting("auto", "a number, or auto", ge=1)


@pytest.mark.parametrize(("flags", "value"), [((), "auto"), (("--size", "3"), 3), (("--size", "auto"), "auto")])
def test_a_setting_may_take_a_number_or_a_word(flags, value):
    parser = argparse.ArgumentParser()
    add_flags(parser, Sized)
    assert settings_from(Sized, parser.parse_args(flags), command="x").size == value
    assert "--size N|auto" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--size", "large"])


@pytest.mark.parametrize(("text", "sentence"), [('"large"', "a whole number, or auto"), ("0", "at least 1")])
def test_a_number_or_a_word_of_a_file_is_checked(toml, text, sentence):
    with pytest.raises(UsageError, match=sentence):
        settings_from(Sized, argparse.Namespace(), command="x", config=toml(f"size = {text}"))


def test_a_single_text_is_a_list_of_one():
    """A setting that became a list refused the files that gave it one text."""

    @dataclass(frozen=True)
    class Keys:
        text_key: tuple[str, ...] = setting(("text",), "keys")

    assert make_settings(Keys, {"text_key": "body"}, "f.toml").text_key == ("body",)
    assert make_settings(Keys, {"text_key": ["a", "b"]}, "f.toml").text_key == ("a", "b")
    with pytest.raises(UsageError, match="text_key should be a list of texts, not 3"):
        make_settings(Keys, {"text_key": 3}, "f.toml")


def test_of_many_changed_settings_a_few_are_named_and_the_missing_file_is_asked_for():
    """A forgotten --config was answered with a sentence of fourteen settings, in which no --config occurred."""
    old = dict.fromkeys("abcdefgh", 1)
    assert changes(old, old | {"a": 2}) == "a was 1, now 2"
    assert changes(old, dict.fromkeys(old, 2)) == (
        "a was 1, now 2; b was 1, now 2; c was 1, now 2; d was 1, now 2; e was 1, now 2; "
        "and 3 more: was another --config given, or none?"
    )
    assert changes(old, old) == ""


def test_the_choices_of_a_setting_are_asked_for_when_its_flag_is_made(capsys):
    """A set to which plugins may add was free text on the command line, which no shell completed."""
    known = ["rye", "spelt"]

    @dataclass(frozen=True)
    class Flour:
        kind: str = setting("rye", "of flour", choices=lambda: known)
        others: tuple[str, ...] = setting((), "mixed in", choices=lambda: known)

    known.append("wheat")
    parser = argparse.ArgumentParser()
    add_flags(parser, Flour)
    flour = settings_from(Flour, parser.parse_args(["--kind", "wheat", "--others", "rye, spelt"]), command="x")
    assert flour == Flour("wheat", ("rye, spelt",))
    for flag in ("--kind", "--others"):
        with pytest.raises(SystemExit):
            parser.parse_args([flag, "rye,oat"])
        listed = capsys.readouterr().err.partition("choose from")[2]
        assert "rye" in listed and "spelt" in listed and "wheat" in listed


# --- settings that there are no more ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Later:
    """What became of `Bake`."""

    REMOVED: ClassVar[Mapping[str, Removed]] = {
        "steam": Removed("put a bowl of water into it", unused=0.0),
        "toppings figs": Removed("take dates"),
    }

    minutes: int = setting(30, "how long")
    toppings: tuple[str, ...] = setting((), "what goes on top", choices=lambda: ["dates", "nuts"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cake", "--steam", "0.5"], "bake cake: error: --steam is gone: put a bowl of water into it."),
        (["cake", "--minutes", "5", "--steam=1"], "--steam is gone: put a bowl of water into it."),
        (["cake", "--no-steam"], "--no-steam is gone: put a bowl of water into it."),
        (["cake", "--toppings", "nuts", "figs"], "--toppings figs is gone: take dates."),
        (["cake", "--toppings", "fogs"], "invalid choice: 'fogs'"),
        (["cake", "--stema", "1"], "unrecognized arguments: --stema 1"),
        (["bread"], "bake: error: bread is gone: buy it."),
        (["breda"], "there is no command breda"),
    ],
)
def test_a_flag_or_command_that_went_is_answered_with_its_sentence(words, said, capsys):
    parser = Parser(prog="bake")
    parser.removed["bread"] = "buy it"
    add_flags(parser.add_subparsers(required=True).add_parser("cake"), Later)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(words)
    assert said in capsys.readouterr().err
    assert "steam" not in parser.format_help()


@pytest.mark.parametrize(("value", "is_refused"), [(0.0, False), (0.5, True)])
def test_a_key_that_went_is_refused_where_it_was_used(value, is_refused):
    if not is_refused:
        assert make_settings(Later, {"steam": value, "minutes": 3}, "a.toml") == Later(3)
        return
    with pytest.raises(UsageError, match=r"a\.toml: toppings figs is gone: take dates\."):
        make_settings(Later, {"toppings": ["nuts", "figs"]}, "a.toml")
    with pytest.raises(UsageError, match=r"a\.toml: steam is gone: put a bowl of water into it\."):
        make_settings(Later, {"steam": value}, "a.toml")
    with pytest.raises(UsageError, match=r"a\.toml: unknown setting steem; known are"):
        make_several([Later], {"steem": value}, "a.toml")
