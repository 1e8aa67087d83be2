"""The steps of a pipeline, each wired to the steps before it.

A stage reads what the stage before it wrote; `[tokenize]` encodes with the tokenizer of a `[train-tokenizer]` before
it; `[train]` learns from the token files, `[evaluate]` and `[generate]` use its model, and after an `[index-tokens]`
`[generate]` says what its texts repeat; a command that looks at folders (`[report]`) gets the last one, and the model.
A table that names a path itself is left alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_kit import UsageError, setting
from command_kit.errors import meant
from command_kit.settings import flag_name
from indexed_tokens.suffix_index import index_folder
from webtext_prep.cli import find_commands, find_stages
from webtext_prep.commands.base import Command
from webtext_prep.running.settings import Chain, checked, engine_settings, find_engines, read_table
from webtext_prep.running.stage import Stage
from webtext_prep.storage import is_local, location

if TYPE_CHECKING:
    from gpt2_train.evaluation.tasks import Task

HERE = (Path(__file__).parent / "pipelines" / "quickstart.toml").resolve().parent
"""The pipelines that come with the project: of a checkout its own folder, to which the files of the package lead."""
IN_CHECKOUT = (HERE.parent / "uvw").is_file()
RUN = "pipelines/run.py" if IN_CHECKOUT else "webtext-run"
"""The program that starts a pipeline here."""
NAME = Path(RUN).name
"""The name by which messages call it."""
PREFIX = ("./uvw", "run") if IN_CHECKOUT else ()
"""The words before it, and before every other command."""
WHOLE = "pipeline"
"""The table that concerns the whole run."""
OF_ALL_STAGES = ("engine", "workers", "shared_scratch")
"""Settings of every stage that `[pipeline]` may hold for all of them, like the engines' settings."""


@dataclass(frozen=True)
class Pipeline:
    """The table `[pipeline]`: what concerns the whole run. It may also hold where the tasks of all stages run."""

    description: str = setting("", "one line, shown when the run starts")
    folder: str = setting("", "where everything is written; runs/NAME without it")
    site: bool = setting(
        False, "serve the documentation of Python and its packages on loopback and take the URL list from there"
    )


def shipped() -> dict[str, str]:
    """The pipelines of this folder: name -> what each is about."""
    tables = {file.stem: tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(HERE.glob("*.toml"))}
    return {name: table.get(WHOLE, {}).get("description", "") for name, table in tables.items()}


def read_pipeline(name: str) -> tuple[Path, dict[str, Any]]:
    """The file that `name` means, a path or a pipeline of this folder, and its tables. Raises UsageError."""
    path = Path(name)
    if not name.endswith(".toml"):
        path = HERE / f"{name}.toml"
        with contextlib.suppress(ValueError):
            path = path.relative_to(Path.cwd())  # shorter in the command lines that are shown
    if not path.is_file():
        known = shipped()
        asked = meant(name.removesuffix(".toml"), known)
        raise UsageError(f"no pipeline {name}: {asked}give the path of a TOML file, or one of {', '.join(known)}.")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    for key, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {key} stands outside a table; every setting belongs to a [command].")
    return path, tables


def change_settings(tables: dict[str, Any], changes: Iterable[str], path: Path) -> dict[str, list[str]]:
    """Change `tables` as each of `changes`, such as `train.steps=60`, says; values are written as in TOML, or plain.

    Returns, for each table, the flags that say the same to its command: flags win over its file.
    Raises UsageError for a change that names no table of the file, or has no value.
    """
    flags: dict[str, list[str]] = {}
    for change in changes:
        place, equals, text = change.partition("=")
        name, dot, key = place.rpartition(".")
        if not (equals and dot and name and key):
            raise UsageError(f"--set {change} is not TABLE.SETTING=VALUE, such as train.steps=60.")
        if name not in tables:
            asked = meant(name, tables)
            raise UsageError(f"--set {change}: {path} has no table [{name}]; {asked}it has {', '.join(tables)}.")
        value = _value(text)
        table = tables[name]
        if name == "train" and has_trainer():
            from gpt2_train.training.command import overridden_keys

            for replaced in overridden_keys([key]):  # one way to say the length of a run stands for the others
                table.pop(replaced, None)
        table[key] = value
        if name != WHOLE:
            flags.setdefault(name, []).extend(as_flags(key, value, f"--set {change}"))
    return flags


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def as_flags(key: str, value: Any, source: str) -> list[str]:
    """The flags that say what a setting of a file does. Raises UsageError, naming the source, for an empty list."""
    flag = flag_name(key)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list | tuple) and not value:
        raise UsageError(f"{source}: no list can be emptied here; edit the file instead.")
    return [f"{flag}={entry}" for entry in (value if isinstance(value, list | tuple) else [value])]


PROGRAMS = {"webtext_prep": "webtext", "gpt2_train": "gpt2"}
MODEL_COMMANDS = ("train", "evaluate", "generate")
HELD_OUT_LOSS = "held-out-loss"
REPORTS = {"report": "report.html"}
"""Commands that write a file, and its name in the pipeline's folder."""
SAMPLES = "samples.json"
"""The file of what the pipeline's [generate] wrote, in its folder."""


@dataclass
class PipelineStep:
    """One command of the pipeline.

    Attributes:
        name: the command, which is the name of its table.
        program: the package whose command it is.
        table: its settings, as the file and `--set` give them.
        settings: the same, checked: of a stage the common ones, else the command's own.
        arguments: the paths, and what `--set` changed, as its command line has them.
        output: what it writes, or the model that it uses; empty for a command that only looks.
        stage: the stage with its settings, for a stage.
        task: what `[evaluate]` measures, with its settings.
        engine_settings: the settings of a stage's engine, as they are given.
        made: the inputs of a stage that an earlier step makes, or for another command their paths.
        tokenizer: the tokenizer that an earlier step makes and this one uses; empty for none.
        restart: whether it discards what an earlier run made, and starts again.
        summary: what it said at its end.
    """

    name: str
    program: str
    table: dict[str, Any]
    settings: Any
    arguments: list[str] = field(default_factory=list)
    output: str = ""
    stage: Stage | None = None
    task: Task | None = None
    engine_settings: dict[str, Any] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    tokenizer: str = ""
    restart: bool = False
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def is_held_out_loss(self) -> bool:
        """Whether it measures token files, so that it gets the pipeline's."""
        return self.task is not None and self.task.name == HELD_OUT_LOSS


@dataclass
class _Wiring:
    """The outputs of the steps so far.

    Attributes:
        path: the pipeline's file.
        folder: where it writes.
        made: every path that a step makes.
        chain: the stages.
        model: the folder of the training run.
    """

    path: Path
    folder: Path
    made: set[str]
    chain: Chain
    model: str
    is_trained: bool = False
    has_samples: bool = False

    def where(self, name: str) -> str:
        """The name by which messages call a table."""
        return f"{self.path} [{name}]"

    def are_made(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Those of `paths` that a step before makes."""
        return tuple(path for path in paths if path in self.made)


def plan(
    path: Path,
    tables: Mapping[str, Any],
    folder: Path,
    first_input: Sequence[str],
    flags: Mapping[str, Sequence[str]] | None = None,
    *,
    site: bool = False,
    of_all_stages: Mapping[str, Any] | None = None,
) -> list[PipelineStep]:
    """The steps of a pipeline, each wired to the steps before it, with its settings checked one by one.

    Args:
        path: the file, for messages.
        tables: what it holds.
        folder: where everything is written.
        first_input: what the first stage reads, unless its table says so.
        flags: what else to tell the command of each table.
        site: whether the first input is made when the run starts.
        of_all_stages: where the tasks of each stage run, unless its table says so (engine, workers, ray_address), or it
            works in one process of this machine.

    Where the trainer is not installed these are the steps before the first one of it. Raises UsageError naming the
    table and the key.
    """
    stages, commands = find_stages(), find_commands()
    made = set(first_input[:1]) if site else set()
    so_far = _Wiring(path, folder, made, Chain(first_input, str(folder / "corpus")), str(folder / "model"))
    steps: list[PipelineStep] = []
    for name, table in tables.items():
        if name == WHOLE:
            continue
        if name in stages:
            step = _stage_step(so_far, stages[name], table, of_all_stages or {})
        elif name in MODEL_COMMANDS and not has_trainer():
            break  # see `prepared`
        elif name in MODEL_COMMANDS:
            step = _model_step(so_far, name, table)
        elif name in commands:
            step = _command_step(so_far, commands[name], table)
        else:
            known = [*stages, *MODEL_COMMANDS, *commands]
            raise UsageError(f"{path}: no command [{name}]; {meant(name, known)}known are {', '.join(known)}.")
        by_place = ("--task=", f"--{step.task.source}=") if step.task is not None else ()
        step.arguments += [flag for flag in (flags or {}).get(name, ()) if not flag.startswith(by_place)]
        steps.append(step)
    steps = _without_unused_tokenizers(steps)
    if not steps:
        raise UsageError(f"{path} describes no step: add a table such as [clean].")
    used = {step.settings.engine for step in steps if step.stage is not None}
    for key, engine in engine_settings().items():
        if key in (of_all_stages or {}) and engine not in used:
            raise UsageError(f"{flag_name(key)} is a setting of --engine {engine}, which no stage of {path} runs on.")
    if (of_all_stages or {}).get("shared_scratch") and used and all(_is_here(engine) for engine in used):
        raise UsageError(
            f"--shared-scratch is for tasks on other machines, and every stage of {path} runs here: choose another "
            "--engine, or leave it out."
        )
    return steps


def has_trainer() -> bool:
    """Whether the package with the command `gpt2` is installed."""
    return importlib.util.find_spec("gpt2_train") is not None


def _without_unused_tokenizers(steps: list[PipelineStep]) -> list[PipelineStep]:
    """The steps without the ones that make a tokenizer for a `[tokenize]` that has another one."""
    if not any(step.name == "tokenize" for step in steps):
        return steps
    used = {step.tokenizer for step in steps}
    return [
        step for step in steps if step.output in used or step.stage is None or step.stage.writes.made != "tokenizer"
    ]


def _is_here(engine: str) -> bool:
    """Whether an engine runs tasks on this machine with any settings."""
    return engine in find_engines() and find_engines()[engine].is_here


def _stage_step(
    so_far: _Wiring, kind: type[Stage], table: dict[str, Any], of_all_stages: Mapping[str, Any]
) -> PipelineStep:
    name, chain = kind.name, so_far.chain
    if kind.is_one_process and not _is_here(of_all_stages.get("engine", "local")):
        of_all_stages = {}  # it works here, whatever the others do
    of_engines = engine_settings()
    engine = table.get("engine", of_all_stages.get("engine", "local"))
    passed = {
        key: value
        for key, value in of_all_stages.items()
        if key not in table
        and of_engines.get(key, engine) == engine
        and not (key == "shared_scratch" and _is_here(engine))
    }
    stage, settings, chosen = read_table(kind, {**passed, **table}, so_far.where(name))
    link = chain.add(stage, settings, chain.corpus if kind.writes.made == "tokens" else str(so_far.folder / name))
    inputs, output, state = link.run.input, link.run.output, settings.state
    if not (link.is_beside or state or is_local(location(output))):
        state = str(so_far.folder / f"{name}.state")
    step = PipelineStep(name, "webtext_prep", table, dataclasses.replace(link.run, state=state))
    step.arguments = ["--input", *inputs, *([] if link.is_beside else ["--output", output])]
    step.arguments += ["--state", state] if "state" not in table and state else []
    step.arguments += [flag for key, value in passed.items() for flag in as_flags(key, value, so_far.where(WHOLE))]
    step.arguments += ["--tokenizer", link.tokenizer] if link.tokenizer else []
    step.output, step.stage, step.made = output, link.stage, so_far.are_made(inputs)
    step.engine_settings, step.tokenizer = chosen, link.tokenizer
    so_far.made |= {output, link.made}
    return step


def _model_step(so_far: _Wiring, name: str, table: dict[str, Any]) -> PipelineStep:
    from gpt2_train.cli import settings_class
    from gpt2_train.evaluation.command import evaluation_of

    if name == "train":
        so_far.model = table.get("output", so_far.model)
    wanted = {
        "train": {"data": so_far.chain.tokens, "output": so_far.model},
        "evaluate": {"checkpoint": so_far.model, "data": so_far.chain.tokens},
        "generate": {"checkpoint": so_far.model},
    }[name]
    if name == "evaluate" and table.get("task", HELD_OUT_LOSS) != HELD_OUT_LOSS:
        del wanted["data"]  # the other tasks bring texts of their own
    index = str(index_folder(so_far.chain.tokens))
    if name == "generate" and index in so_far.made:
        wanted["trace"] = so_far.chain.tokens
    paths = {key: value for key, value in wanted.items() if key not in table}
    step = PipelineStep(name, "gpt2_train", table, None, output=so_far.model)
    if name == "evaluate":
        step.settings, step.task = evaluation_of({**table, **paths}, so_far.where(name), checked)
        file = getattr(step.task, step.task.source)
        step.arguments = [step.task.name, *([file] if file else [])]
        paths.pop("data", None)
    else:
        step.settings = checked(settings_class(name), {**table, **paths}, so_far.where(name))
    step.arguments += [part for key, value in paths.items() for part in (f"--{key}", value)]
    step.made = so_far.are_made([*wanted.values(), index])
    if name == "train":
        so_far.made.add(so_far.model)
        so_far.is_trained = True
    so_far.has_samples |= name == "generate"
    return step


def _command_step(so_far: _Wiring, kind: type[Command], table: dict[str, Any]) -> PipelineStep:
    """A command that looks at what there is: it gets the last folder, the place of its file, and the model."""
    last = so_far.chain.tokens if so_far.chain.has_tokens else (so_far.chain.documents or (str(so_far.folder),))[0]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    paths: dict[str, str] = {}
    if kind.name in REPORTS:
        paths["output"] = str(so_far.folder / REPORTS[kind.name])
        if so_far.is_trained:
            paths["run"] = so_far.model
        if so_far.is_trained and so_far.has_samples:
            paths["samples"] = str(so_far.folder / SAMPLES)
    paths = {key: value for key, value in paths.items() if key not in table}
    where = next((key for key, entry in fields.items() if entry.metadata.get("positional")), None)
    first = [last] if where is not None and where not in table else []
    values: dict[str, Any] = {**table, **paths}
    if first and where is not None:
        values[where] = last  # a list of one, where it takes several
    settings = checked(kind, values, so_far.where(kind.name))
    step = PipelineStep(kind.name, "webtext_prep", table, settings, output=values.get("output", ""))
    step.arguments = [*first, *(part for key, value in paths.items() for part in (f"--{key}", value))]
    step.made = so_far.are_made([*first, *paths.values()])
    return step


def restart(steps: Sequence[PipelineStep], first: str) -> None:
    """Make the steps from the one called `first` on start again; all of them if it is empty. Raises UsageError."""
    names = [step.name for step in steps]
    if first and first not in names:
        raise UsageError(
            f"--restart {first} is not a step: {meant(first, names)}choose one of {', '.join(names)}, or name none for "
            "all."
        )
    for step in steps[names.index(first) if first else 0 :]:
        step.restart = True


def shown_command(step: PipelineStep, path: Path) -> list[str]:
    """One step as it would be given by hand."""
    again = ["--restart"] if step.restart and step.stage is not None else []
    return [PROGRAMS[step.program], step.name, *step.arguments, *again, "--config", str(path)]


def words_of(step: PipelineStep) -> dict[str, str]:
    """The words that run.py's user types for each flag of a step: most are settings of its table."""
    common = {"input", *OF_ALL_STAGES, *engine_settings()}  # run.py has these flags itself
    settings: list[Any] = [kind for kind in (step.settings, step.stage, step.task) if kind is not None]
    words = {}
    for entry in (entry for kind in settings for entry in dataclasses.fields(kind) if entry.name not in common):
        place = f"--set {step.name}.{entry.name}="
        words[flag_name(entry.name)] = f"{place}true" if entry.type == "bool" else place
        words[f"--no-{flag_name(entry.name)[2:]}"] = f"{place}false"
    return {**words, "--output": "--folder", "--restart": f"--restart {step.name}", "--config": "file"}
