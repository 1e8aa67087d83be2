"""One frozen dataclass is a command's settings: its fields are the flags, the TOML keys, and the documentation.

    @dataclass(frozen=True)
    class Clean:
        min_tokens: int = setting(128, "drop documents with fewer GPT-2 tokens than this", ge=0)

gives `--min-tokens N` on the command line and `min_tokens = 128` in a TOML file. A value is checked once, where it
enters: its type against the field's annotation, its limits, and what the dataclass's `__post_init__` asks (it raises
`UsageError`). Unknown keys are errors. Flags win over the file, the file over the defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import tomli_w

from command_kit.errors import UsageError, meant, nearest

Settings = TypeVar("Settings")
_NOT_GIVEN: Any = object()


class _Collect(argparse.Action):
    """Collect the values of a flag that may be given several times: none of them is silently replaced by a later."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if values is _NOT_GIVEN:
            return  # a positional argument that is not there
        earlier = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if earlier is _NOT_GIVEN else earlier), *values])


class _Joined(tuple[str, ...]):
    """The choices of a flag that takes several: `a,b` is two of them."""

    def __contains__(self, value: object) -> bool:
        parts = [part.strip() for part in str(value).split(",")]
        return all(super(_Joined, self).__contains__(part) for part in parts if part)


class Bounds(NamedTuple):
    """The bounds of a number: at least `ge`, above `gt`, at most `le`, below `lt`; None for no limit."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def __str__(self) -> str:
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        return " and ".join(f"{words[name]} {value:,}" for name, value in self._asdict().items() if value is not None)

    def hold(self, value: float) -> bool:
        """Whether `value` is inside; infinity and NaN never are."""
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )


def setting(
    default: Any,
    help: str,
    *,
    metavar: str | None = None,
    group: str | None = None,
    identity: bool = True,
    positional: bool = False,
    choices: Callable[[], Iterable[str]] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """A dataclass field that is a flag and a TOML key.

    Args:
        default: its default value.
        help: one line for `--help`; the default is appended to it.
        metavar: the placeholder shown for its value, `N` for numbers by default.
        group: the heading under which `--help` lists it.
        identity: whether the result depends on it. A setting that changes only how the work is done (a number of
            workers, a logging interval) is not part of a run's identity and may differ when the run resumes.
        positional: whether it is given without a flag, by its place. It may also stand in a TOML file, so the command
            itself must say when it is missing.
        choices: gives the names that a text, or each text of a list, may be, where plugins may add to them; it is
            called when the flags are made. A file's value the dataclass checks itself. Where the names never change, a
            `Literal` says the same. In a list, `a,b` is two of them.
        ge, gt, le, lt: the limits of a number (of each number in a list): at least, above, at most, below. With any
            of them the number must be finite, too. None and words, where the annotation allows them, have no limits.
    """
    limits = Bounds(ge, gt, le, lt)
    metadata: dict[str, Any] = {"help": help, "metavar": metavar, "group": group, "identity": identity}
    metadata |= {"positional": positional, "choices": choices, "limits": limits if limits != Bounds() else None}
    return dataclasses.field(default=default, metadata=metadata)


class Removed(NamedTuple):
    """A setting that there is no more, and how one is answered that is given all the same.

    A settings class names them in `REMOVED`, by the names that the fields had, or, for a value of one, by both
    (`threads auto`); `add_flags` and `make_settings` read it there. Commands stand in `Parser.removed` alone.

    Attributes:
        instead: what to use instead, the end of a sentence.
        unused: the value that it has in files which did not use it: there it is passed over.
    """

    instead: str
    unused: Any = None


def removed_settings(settings_class: type) -> Mapping[str, Removed]:
    """The settings of a class that there are no more, by name."""
    return getattr(settings_class, "REMOVED", {})


def flag_name(field_name: str) -> str:
    """`min_tokens` -> `--min-tokens`."""
    return "--" + field_name.replace("_", "-")


def _field_types(settings_class: type) -> dict[str, Any]:
    hints = typing.get_type_hints(settings_class)
    return {field.name: hints[field.name] for field in dataclasses.fields(settings_class)}


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """`int | None` -> (int, None's type); () for what has none."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if is_union else ()


def _without_none(annotation: Any) -> Any:
    """`int | None` -> `int`, `Literal["a"] | bool | None` -> `Literal["a"] | bool`."""
    parts = tuple(part for part in _alternatives(annotation) if part is not type(None))
    return typing.Union[parts] if parts else annotation  # noqa: UP007


def _switch_choices(annotation: Any) -> tuple[Any, ...]:
    """The values that a switch may also take: `Literal["a", "b"] | bool` -> ("a", "b"); () for any other annotation."""
    parts = _alternatives(annotation)
    literals = [part for part in parts if typing.get_origin(part) is typing.Literal]
    return typing.get_args(literals[0]) if bool in parts and len(literals) == 1 and len(parts) == 2 else ()


def _number_or_words(annotation: Any) -> tuple[type, tuple[str, ...]] | None:
    """The kind of number and the words of a field that takes either: `int | Literal["auto"]` -> (int, ("auto",))."""
    parts = _alternatives(annotation)
    numbers = [part for part in parts if part in (int, float)]
    words = [typing.get_args(part) for part in parts if typing.get_origin(part) is typing.Literal]
    return (numbers[0], words[0]) if numbers and words and len(parts) == 2 else None


def _reader(kind: type, words: Collection[str]) -> Callable[[str], Any]:
    """The function that makes a value of the text of a flag for a number or a word; argparse shows its name."""

    def read(text: str) -> Any:
        return text if text in words else kind(text)

    read.__name__ = f"{kind.__name__} or {' or '.join(words)}"
    return read


def _described(annotation: Any) -> str:
    annotation = _without_none(annotation)
    if either := _number_or_words(annotation):
        return f"{_described(either[0])}, or {' or '.join(either[1])}"
    if choices := _switch_choices(annotation):
        return f"true, false, or one of {', '.join(map(str, choices))}"
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) is tuple:
        inner = typing.get_args(annotation)[0]
        several = {str: "a list of texts", Path: "a list of paths"}
        return several.get(inner, f"a list, each of them {_described(inner)}")
    kinds = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
    return kinds.get(annotation, str(annotation))


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE.toml`, the file whose settings `settings_from` takes as its `config`."""
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from a TOML file; flags win over it")


def add_flags(
    parser: argparse.ArgumentParser,
    settings_class: type,
    *,
    skip: Iterable[str] = (),
    group: str | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Add a flag to `parser` for each field of `settings_class` that was made by `setting`.

    A flag that is not given leaves no value behind, so that `settings_from` can tell it from the default.
    `group` is the heading of all of them, instead of the headings that the fields name. `choices` are the names that a
    field may take where `setting` can't know them.
    """
    kinds = _field_types(settings_class)
    for name, removed in removed_settings(settings_class).items():
        for flag in (flag_name(name), "--no-" + flag_name(name)[2:]):
            vars(parser).setdefault("removed", {})[flag] = removed.instead
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(settings_class):
        if "help" not in field.metadata or field.name in skip:
            continue
        heading: str | None = group or field.metadata["group"]
        target: Any = parser
        if heading is not None:
            target = groups.get(heading) or groups.setdefault(heading, parser.add_argument_group(heading))
        kind = _without_none(kinds[field.name])
        text = field.metadata["help"].replace("%", "%%")
        remarks = [str(field.metadata["limits"])] if field.metadata["limits"] else []
        if field.default not in (None, (), ""):
            shown = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
            shown = {True: "yes", False: "no"}.get(shown, shown) if isinstance(shown, bool) else shown
            remarks.append(f"default: {shown}")
        if remarks:
            text += f" ({'; '.join(remarks)})".replace("%", "%%")
        options: dict[str, Any] = {"dest": field.name, "default": _NOT_GIVEN, "help": text}
        if kind is bool:
            target.add_argument(flag_name(field.name), action=argparse.BooleanOptionalAction, **options)
            continue
        if switches := _switch_choices(kind):
            switched_off = {**options, "const": False, "help": f"the opposite of {flag_name(field.name)}"}
            target.add_argument(flag_name(field.name), nargs="?", const=True, choices=switches, **options)
            target.add_argument("--no-" + flag_name(field.name)[2:], action="store_const", **switched_off)
            continue
        if either := _number_or_words(kind):
            options["metavar"] = field.metadata["metavar"] or "|".join(("N" if either[0] is int else "X", *either[1]))
            target.add_argument(flag_name(field.name), type=_reader(*either), **options)
            continue
        is_positional, choices_of = field.metadata["positional"], field.metadata["choices"]
        names = choices[field.name] if choices and field.name in choices else choices_of and choices_of()
        if names is not None:
            options["choices"] = (_Joined if typing.get_origin(kind) is tuple else tuple)(names)
        if typing.get_origin(kind) is tuple:
            options |= {"nargs": "*" if is_positional else "+", "action": _Collect}
            kind = typing.get_args(kind)[0]
        elif is_positional:
            options["nargs"] = "?"
        if typing.get_origin(kind) is typing.Literal:
            options["choices"] = typing.get_args(kind)
            kind = type(options["choices"][0])
        if "choices" not in options:
            options["metavar"] = field.metadata["metavar"] or {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")
        if is_positional:
            del options["dest"]
        target.add_argument(field.name if is_positional else flag_name(field.name), type=kind, **options)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises UsageError, naming file and line, where it can't be read."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise UsageError(f"no settings file {path}: give the path of a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read the settings file {path} ({error}).") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the settings file {path} is not valid TOML: {error}.") from error


def command_table(tables: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The settings for one command in a TOML file: its table `[command]` if there is one, else the top-level keys.

    So the file of a whole pipeline, one table per stage, can be given to each of its commands. Raises UsageError if the
    file has tables, but neither that of the command nor top-level keys (a misspelt table must not pass for defaults),
    or both.
    """
    flat = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    if isinstance(tables.get(command), dict):
        if flat:
            raise UsageError(
                f"{next(iter(flat))} is outside a table, where it would be ignored: move it below [{command}], or "
                "below the command that it is meant for."
            )
        return dict(tables[command])
    if tables and not flat:
        near = nearest(command, tables)
        hint = f"did you mean [{command}] by [{near}]?" if near else f"it has [{'], ['.join(tables)}]."
        raise UsageError(f"no table [{command}] among the settings: {hint}")
    return flat


def check_value(annotation: Any, value: Any, name: str, where: str) -> Any:
    """`value` as `annotation` asks; where that is a list, a single value is a list of one.

    Raises UsageError naming the key and the place where it doesn't fit.
    """
    if typing.get_origin(annotation) is tuple and isinstance(value, str):
        value = (value,)
    try:
        return msgspec.convert(value, type=annotation, strict=True, dec_hook=_path)
    except msgspec.ValidationError:
        raise UsageError(f"{where}: {name} should be {_described(annotation)}, not {value!r}.") from None


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"{kind} is not a kind of setting")


def check_limits(settings: Any) -> None:
    """Raise UsageError for the first number of `settings`, a dataclass, that is outside its field's limits.

    `make_settings` checks by itself; a dataclass that is also made by other code calls this in its `__post_init__`.
    """
    for field in dataclasses.fields(settings):
        _check_field(field, getattr(settings, field.name), flag_name(field.name))


def check_choices(settings: Any) -> None:
    """Make `a,b` two values in the fields of `settings` that take several choices, which may be a frozen dataclass.

    Raises UsageError for a value that is none of them. Classes with such fields call it in their `__post_init__`.
    """
    for field in dataclasses.fields(settings):
        given = getattr(settings, field.name)
        if isinstance(given, tuple) and given and field.metadata.get("choices"):
            values = tuple(part.strip() for entry in given for part in entry.split(",") if part.strip())
            known = tuple(field.metadata["choices"]())
            for value in values:
                if value not in known:
                    names = ", ".join(sorted(known))
                    asked = meant(value, known)
                    raise UsageError(f"{flag_name(field.name)} {value} is not known: {asked}choose among {names}.")
            object.__setattr__(settings, field.name, values)


def _check_field(field: dataclasses.Field[Any], value: Any, name: str) -> None:
    limits: Bounds | None = field.metadata.get("limits")
    for number in value if isinstance(value, tuple) else (value,):
        if limits is not None and isinstance(number, int | float) and not limits.hold(number):
            finite = "" if math.isfinite(number) else " and finite"
            raise UsageError(f"{name} is {number}: it should be {limits}{finite}.")


def make_settings(
    settings_class: type[Settings],
    values: Mapping[str, Any],
    where: str,
    *,
    neighbours: Iterable[str] = (),
    flags: Collection[str] = (),
) -> Settings:
    """A `settings_class` from plain `values`, as a TOML file holds them.

    Raises UsageError for an unknown key (with the nearest known one), a wrong type, or a value that the class refuses;
    `where` names the source in the message, `neighbours` the keys that other readers of the source know, `flags` the
    keys of `values` that came from the command line.
    """
    kinds = _field_types(settings_class)
    known, gone = dict.fromkeys([*kinds, *neighbours]), removed_settings(settings_class)
    values = {name: value for name, value in values.items() if name not in gone or value != gone[name].unused}
    for name, value in values.items():
        # A setting that went is known as its flag was written, too.
        used_values = value if isinstance(value, list | tuple) else [value]
        for used in (name.replace("-", "_"), *(f"{name} {one}" for one in used_values)):
            if used in gone:
                raise UsageError(f"{where}: {used} is gone: {gone[used].instead}.")
        if name not in kinds:
            near = nearest(name, known)
            hint = f" (did you mean {near}?)" if near else f"; known are {', '.join(known)}"
            raise UsageError(f"{where}: unknown setting {name}{hint}.")
    checked = {name: check_value(kinds[name], value, name, where) for name, value in values.items()}
    for field in dataclasses.fields(settings_class):  # type: ignore[arg-type]
        if field.name in checked:
            name = flag_name(field.name) if field.name in flags else f"{where}: {field.name}"
            _check_field(field, checked[field.name], name)
    return settings_class(**checked)


def make_several(
    classes: Sequence[type],
    values: Mapping[str, Any],
    where: str,
    *,
    neighbours: Iterable[str] = (),
    flags: Collection[str] = (),
) -> list[Any]:
    """The settings of several classes that share one table, in which each key belongs to the first class that has it.

    Raises UsageError as `make_settings` does.
    """
    owners: dict[str, int] = {}
    for number, kind in enumerate(classes):
        for key in (*_field_types(kind), *removed_settings(kind)):
            owners.setdefault(key, number)
    parts: list[dict[str, Any]] = [{} for _ in classes]
    for key, value in values.items():
        parts[owners.get(key, owners.get(key.replace("-", "_"), 0))][key] = value
    known = [*(key for kind in classes for key in _field_types(kind)), *neighbours]
    return [
        make_settings(kind, part, where, neighbours=known, flags=flags)
        for kind, part in zip(classes, parts, strict=True)
    ]


def checked(
    classes: Sequence[type], values: Mapping[str, Any], where: str, *, neighbours: Iterable[str] = ()
) -> list[Any]:
    """The settings of several classes as `make_several` makes them of a table that each of its errors names, `where`.

    Raises UsageError.
    """
    try:
        return make_several(classes, values, where, neighbours=neighbours)
    except UsageError as error:
        raise UsageError(str(error) if where in str(error) else f"{where}: {error}") from None


def settings_from(
    settings_class: type[Settings],
    arguments: argparse.Namespace,
    *,
    command: str,
    config: str | Path | None = None,
    ignore: Iterable[str] = (),
) -> Settings:
    """The settings of one command: defaults, then its TOML file `config`, then the flags that were given.

    Keys of the file named in `ignore` (paths that a pipeline's file also holds) are passed over.
    Raises UsageError as `make_settings` and `command_table` do.
    """
    passed_over = sorted(set(ignore))
    known = {field.name for field in dataclasses.fields(settings_class)}  # type: ignore[arg-type]
    table, flags = given_values(arguments, command=command, config=config)
    values = {key: value for key, value in table.items() if key not in passed_over}
    flags = {name: value for name, value in flags.items() if name in known}
    return make_settings(
        settings_class, values | flags, source_name(config), neighbours=passed_over, flags=flags.keys()
    )


def given_values(
    arguments: argparse.Namespace, *, command: str, config: str | Path | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of one command that its TOML file `config` and its flags give, as they stand there.

    Raises UsageError as `command_table` does.
    """
    table: dict[str, Any] = {}
    if config is not None:
        tables = read_toml(config)
        try:
            table = command_table(tables, command)
        except UsageError as error:
            raise UsageError(f"{config}: {error}") from None
    given = {name: value for name, value in vars(arguments).items() if value is not _NOT_GIVEN}
    return table, {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def source_name(config: str | Path | None) -> str:
    """The name by which messages call the place that settings come from."""
    return str(config) if config is not None else "the command line"


def as_table(settings: Any) -> dict[str, Any]:
    """`settings` as a TOML table: plain values, fields that are None left out."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def to_toml(table: Mapping[str, Any]) -> str:
    """A TOML text of `table`, which may hold tables. Raises UsageError for a path that is not UTF-8."""
    text = tomli_w.dumps(dict(table))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 :].partition("\n")[0].strip(" ,")
        raise UsageError(f"{line} is not UTF-8, as a settings file has to be: rename the file or folder.") from None
    return text


def identity(settings: Any) -> dict[str, Any]:
    """The settings that the result depends on (all not marked `identity=False`), as plain values."""
    marked = {field.name for field in dataclasses.fields(settings) if not field.metadata.get("identity", True)}
    return {name: value for name, value in as_table(settings).items() if name not in marked}


MOST_CHANGES = 5
"""Changed settings that are named, at most."""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The differences between two tables of settings, in one line: the first few, and how many more.

    Where many differ, the file that held them is probably missing from the command line.
    """
    found = differences(old, new)
    more = len(found) - MOST_CHANGES
    rest = [f"and {more} more: was another --config given, or none?"] if more > 0 else []
    return "; ".join([*found[:MOST_CHANGES], *rest])


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences between two tables of settings, each as `name was X, now Y`, in the order of the names."""

    def shown(value: Any) -> str:
        return "not set" if value is None else repr(value) if isinstance(value, str) else str(value)

    return [
        f"{name} was {shown(old.get(name))}, now {shown(new.get(name))}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
