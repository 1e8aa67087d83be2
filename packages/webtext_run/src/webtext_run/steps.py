"""A pipeline's file: its tables, changed as the command line says, and the steps that follow from them.

Each step is wired to the steps before it. A stage reads what the stage before it wrote; `[tokenize]` encodes with the
tokenizer of a `[train-tokenizer]` before it; `[train]` learns from the token files, `[evaluate]` and `[generate]` use
its model, and after an `[index-tokens]` `[generate]` says what its texts repeat; a command that looks at folders
(`[report]`) gets the last one, and the model. A table that names a path itself is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import itertools
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_kit import UsageError, setting
from command_kit.colours import wrapped
from command_kit.command import print_note
from command_kit.errors import meant
from command_kit.settings import check_value, checked, flag_name, given_values, make_settings
from indexed_tokens.suffix_index import index_folder
from webtext_prep.cli import find_commands, find_stages
from webtext_prep.commands import Command
from webtext_prep.documents.folders.stage_record import PAGES, TOKENS_SUFFIX
from webtext_prep.running.settings import RunSettings, engine_settings, find_engines
from webtext_prep.running.stage import Stage
from webtext_prep.storage import location

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
PROGRAMS = {"webtext_prep": "webtext", "gpt2_train": "gpt2"}
MODEL_COMMANDS = ("train", "evaluate", "generate")
HELD_OUT_LOSS = "held-out-loss"
REPORTS = {"report": "report.html"}
"""Commands that write a file, and its name in the pipeline's folder."""
SAMPLES = "samples.json"
"""The file of what the pipeline's [generate] wrote, in its folder."""


@dataclass(frozen=True)
class Pipeline:
    """The table `[pipeline]`: what concerns the whole run. It may also hold where the tasks of all stages run."""

    description: str = setting("", "one line, shown when the run starts")
    folder: str = setting("", "where everything is written; runs/NAME without it")
    site: bool = setting(
        False, "serve the documentation of Python and its packages on loopback and take the URL list from there"
    )


# The file


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


def changed(tables: Mapping[str, Any], changes: Iterable[str], path: Path) -> dict[str, Any]:
    """`tables` as each of `changes`, such as `train.steps=60`, has them; values are written as in TOML, or plain.

    Raises UsageError for a change that names no table of the file, or has no value.
    """
    found = {name: dict(table) for name, table in tables.items()}
    for change in changes:
        place, equals, text = change.partition("=")
        name, dot, key = place.rpartition(".")
        if not (equals and dot and name and key):
            raise UsageError(f"--set {change} is not TABLE.SETTING=VALUE, such as train.steps=60.")
        if name not in found:
            asked = meant(name, found)
            raise UsageError(f"--set {change}: {path} has no table [{name}]; {asked}it has {', '.join(found)}.")
        if name == "train" and has_trainer():
            from gpt2_train.training.command import overridden_keys

            for replaced in overridden_keys([key]):  # one way to say the length of a run stands for the others
                found[name].pop(replaced, None)
        found[name][key] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# Its steps


@dataclass
class Step:
    """One command of a pipeline.

    Attributes:
        name: the command, which is the name of its table.
        program: the package whose command it is.
        values: what is given for it: its table, and the paths that earlier steps make.
        settings: the same, checked: of a stage the common ones, else the command's own.
        table: of `values` those that the pipeline's file holds.
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
    values: dict[str, Any]
    settings: Any
    table: Mapping[str, Any] = field(default_factory=dict)
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

    @property
    def arguments(self) -> list[str]:
        """What its command line has besides the pipeline's file."""
        by_place = [key for key in _by_place(self) if key in self.values]
        rest = {key: value for key, value in self.values.items() if key not in by_place}
        flags = [as_flags(key, value) for key, value in rest.items() if self.table.get(key) != value]
        return [*(str(entry) for key in by_place for entry in _entries(self.values[key])), *itertools.chain(*flags)]


def _by_place(step: Step) -> list[str]:
    """The settings that stand without a flag in a step's command line."""
    if step.task is not None:
        return ["task", step.task.source]
    fields = dataclasses.fields(step.settings)
    return [entry.name for entry in fields if entry.metadata.get("positional")]


def _entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def as_flags(key: str, value: Any) -> list[str]:
    """The words of a command line that say what a setting of a file does."""
    flag = flag_name(key)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    words = list(map(str, _entries(value)))
    if any(word.startswith("-") for word in words):
        return [f"{flag}={word}" for word in words]
    return [flag, *words] if words else []


@dataclass
class ArmSteps:
    """The steps of an ablation.

    Attributes:
        shared: the steps before the stage.
        of_each: the steps of each value, by its name.
    """

    shared: list[Step]
    of_each: dict[str, list[Step]]

    @property
    def steps(self) -> list[Step]:
        """All of them, in the order in which they run."""
        return [*self.shared, *(step for own in self.of_each.values() for step in own)]

    def data(self) -> list[str]:
        """Each arm's token files, as `gpt2 ablate --data` takes them."""
        return [f"{name}={steps[-1].output}{TOKENS_SUFFIX}" for name, steps in self.of_each.items()]


class Outputs:
    """What the steps so far make, which the next one uses.

    Args:
        path: the pipeline's file.
        folder: where it writes.
        given: what its first stage reads.

    Attributes:
        documents: what the next stage of documents reads.
        pages: what the next stage of pages reads, whose documents join the others; empty for none.
        tokens: the token files, as what reads them names them.
        has_tokens: whether a stage wrote them.
        tokenizer: the folder of a trained tokenizer; empty for none.
        model: the folder of the training run.
        made: every path that a step makes.
    """

    def __init__(self, path: Path, folder: Path, given: Sequence[str]) -> None:
        self.path, self.folder = path, folder
        self.documents, self.corpus = tuple(given), str(folder / "corpus")
        self.model, self.tokenizer, self.pages = str(folder / "model"), "", ""
        self.has_tokens = self.is_trained = self.has_samples = False
        self.made: set[str] = set()

    @property
    def tokens(self) -> str:
        return self.corpus + TOKENS_SUFFIX

    def are_pages_for(self, stage: Stage) -> bool:
        """Whether there are pages that a stage is to read."""
        return bool(self.pages) and stage.reads.accepts(location(f"{PAGES}.warc.gz"))

    def where(self, name: str) -> str:
        """The name by which messages call a table."""
        return f"{self.path} [{name}]"

    def among(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Those of `paths` that a step before makes."""
        return tuple(path for path in paths if path in self.made)


def prepared(
    arguments: argparse.Namespace, plan_arms: Callable[..., ArmSteps]
) -> tuple[Path, Pipeline, Path, list[Step], ArmSteps | None]:
    """A pipeline's file, what concerns the whole run, the folder, and the steps; with --ablate each arm's steps, too.

    `plan_arms` makes these. Raises UsageError.
    """
    path, written = read_pipeline(arguments.pipeline)
    tables = changed(written, arguments.set, path)
    everywhere = {*OF_ALL_STAGES, *engine_settings()}
    table = check_value(dict, tables.get(WHOLE, {}), WHOLE, str(path))
    given = table | given_values(arguments, command=WHOLE)[1]
    of_all_stages = {key: value for key, value in given.items() if key in everywhere}
    rest = {key: value for key, value in table.items() if key not in everywhere}
    whole = make_settings(Pipeline, rest, str(path), neighbours=sorted(everywhere))
    folder = folder_of(arguments, whole, path)
    title = wrapped(f"{path.stem}: {whole.description or 'a pipeline'}, in {folder}", sys.stderr)
    print(title, file=sys.stderr, flush=True)
    print_note("checking the settings of all steps against this machine")
    first = [*([str(folder / "urls.txt")] if whole.site else []), *arguments.input]

    def planned(tables: Mapping[str, Any], folder: Path, given: Sequence[str]) -> list[Step]:
        is_made = whole.site or given is not first
        return plan(path, tables, folder, given, written, site=is_made, of_all_stages=of_all_stages)

    arms = None
    if arguments.ablate is not None:
        arms = plan_arms(arguments.ablate, path, tables, folder, first, planned)
        steps = arms.steps
    elif arguments.minutes is not None or arguments.want:
        raise UsageError("--minutes and --want are for --ablate: name the setting to compare, or leave them out.")
    else:
        steps = planned(tables, folder, first)
    names = [step.name for step in steps]
    if not has_trainer() and len(names) < len(tables.keys() - {WHOLE}) and arguments.until not in names:
        raise UsageError(
            f"{path.name} also trains a model, and the trainer is not installed: pip install 'webtext-gpt2[train]', or "
            f"stop before it with --until {names[-1] if names else 'STEP'}."
        )
    if arguments.until is not None and arguments.until not in names:
        asked = meant(arguments.until, names)
        raise UsageError(f"--until {arguments.until} is not in {path.name}: {asked}choose one of {', '.join(names)}.")
    if arms is not None and arguments.until is not None:
        raise UsageError("--until stops before --ablate has compared anything: leave one of them out.")
    steps = steps[: names.index(arguments.until) + 1 if arguments.until else None]
    if arguments.restart is not None:
        restart(steps, arguments.restart)
    return path, whole, folder, steps, arms


def folder_of(arguments: argparse.Namespace, whole: Pipeline, path: Path) -> Path:
    """The folder that a pipeline writes to. Raises UsageError for a URL."""
    written_to = arguments.folder or whole.folder
    if "://" in written_to:
        raise UsageError(
            f"--folder {written_to} is a URL, and training needs a folder of this machine: give one, and name the "
            'stages\' URLs in their tables, as output = "s3://...".'
        )
    return Path(written_to or Path("runs") / path.stem)


def plan(
    path: Path,
    tables: Mapping[str, Any],
    folder: Path,
    given: Sequence[str],
    written: Mapping[str, Any] | None = None,
    *,
    site: bool = False,
    of_all_stages: Mapping[str, Any] | None = None,
) -> list[Step]:
    """The steps of a pipeline, each wired to the steps before it, with its settings checked one by one.

    Args:
        path: the file, for messages.
        tables: what it holds, changed as the command line says.
        folder: where everything is written.
        given: what the first stage reads, unless its table says so.
        written: what the file holds; `tables` without it.
        site: whether the first input is made when the run starts.
        of_all_stages: where the tasks of each stage run, unless its table says so (engine, workers, ray_address), or it
            works in one process of this machine.

    Where the trainer is not installed these are the steps before the first one of it. Raises UsageError naming the
    table and the key.
    """
    stages, commands = find_stages(), find_commands()
    so_far = Outputs(path, folder, given)
    so_far.made |= set(given[:1]) if site else set()
    steps: list[Step] = []
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
        step.table = (tables if written is None else written).get(name, {})
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


def _without_unused_tokenizers(steps: list[Step]) -> list[Step]:
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


def _stage_step(so_far: Outputs, kind: type[Stage], table: dict[str, Any], of_all_stages: Mapping[str, Any]) -> Step:
    name, where, of_engines = kind.name, so_far.where(kind.name), engine_settings()
    if kind.is_one_process and not _is_here(of_all_stages.get("engine", "local")):
        of_all_stages = {}  # it works here, whatever the others do
    engine = table.get("engine", of_all_stages.get("engine", "local"))
    passed = {
        key: value
        for key, value in of_all_stages.items()
        if of_engines.get(key, engine) == engine and not (key == "shared_scratch" and _is_here(engine))
    }
    has_own = {"tokenizer", "vocabulary"} & {key for key, value in table.items() if value}
    takes_tokenizer = "tokenizer" in {field.name for field in dataclasses.fields(kind)} and not has_own
    tokenizer = {"tokenizer": so_far.tokenizer} if takes_tokenizer and so_far.tokenizer else {}
    values = {**passed, **tokenizer, **table}
    own = {key: value for key, value in values.items() if key not in of_engines}
    run, stage = checked([RunSettings, kind], own, where, neighbours=of_engines)
    run = _wired(so_far, stage, run)
    paths: dict[str, Any] = {"input": run.input}
    paths |= {} if stage.writes.beside(run.input) else {"output": run.output}
    paths |= {"state": run.state} if run.state else {}
    step = Step(name, "webtext_prep", {**paths, **values, **paths}, run, output=run.output, stage=stage)
    step.made, step.tokenizer = so_far.among(run.input), tokenizer.get("tokenizer", "")
    step.engine_settings = {key: value for key, value in values.items() if key in of_engines}
    if stage.writes.made == "tokens":
        so_far.corpus, so_far.has_tokens = run.output, True
    elif stage.writes.made == "tokenizer":
        so_far.tokenizer = run.output
    elif stage.writes.made == "pages":
        so_far.pages = run.output
    elif stage.writes.made == "documents":
        so_far.documents = (*so_far.documents, run.output) if so_far.are_pages_for(stage) else (run.output,)
        so_far.pages = ""
    so_far.made |= {run.output, so_far.tokens if stage.writes.made == "tokens" else run.output}
    return step


def _wired(so_far: Outputs, stage: Stage, run: RunSettings) -> RunSettings:
    """The common settings of a stage with its input, output and state; what they name themselves is left alone."""
    reads_tokens = so_far.has_tokens and stage.reads.accepts(location(f"{so_far.tokens}.idx"))
    documents = (so_far.pages,) if so_far.are_pages_for(stage) else so_far.documents
    inputs = run.input or ((so_far.tokens,) if reads_tokens else documents)
    if not inputs:
        raise UsageError(f"the first stage, {stage.name}, has no input: give it with --input PATH.")
    beside = stage.writes.beside(inputs)
    own = so_far.corpus if stage.writes.made == "tokens" else str(so_far.folder / stage.name)
    output, state = beside or run.output or own, run.state
    if not (beside or state or isinstance(location(output), Path)):
        state = str(so_far.folder / f"{stage.name}.state")
    return dataclasses.replace(run, input=inputs, output=output, state=state)


def _model_step(so_far: Outputs, name: str, table: dict[str, Any]) -> Step:
    from gpt2_train.config.settings import TrainSettings
    from gpt2_train.evaluation.command import evaluation_of
    from gpt2_train.inference.command import GenerateSettings

    if name == "train":
        so_far.model = table.get("output", so_far.model)
    paths = {
        "train": {"data": so_far.tokens, "output": so_far.model},
        "evaluate": {"data": so_far.tokens, "checkpoint": so_far.model},
        "generate": {"checkpoint": so_far.model},
    }[name]
    if name == "evaluate" and table.get("task", HELD_OUT_LOSS) != HELD_OUT_LOSS:
        del paths["data"]  # the other tasks bring texts of their own
    index = str(index_folder(so_far.tokens))
    if name == "generate" and index in so_far.made:
        paths["trace"] = so_far.tokens
    step = Step(name, "gpt2_train", {**paths, **table}, None, output=so_far.model)
    if name == "evaluate":
        step.settings, step.task = evaluation_of(step.values, so_far.where(name), checked)
        step.values = {"task": step.task.name, **step.values}
    else:
        kind: type = TrainSettings if name == "train" else GenerateSettings
        (step.settings,) = checked([kind], step.values, so_far.where(name))
    step.made = so_far.among([*paths.values(), index])
    if name == "train":
        so_far.made.add(so_far.model)
        so_far.is_trained = True
    so_far.has_samples |= name == "generate"
    return step


def _command_step(so_far: Outputs, kind: type[Command], table: dict[str, Any]) -> Step:
    """A command that looks at what there is: it gets the last folder, the place of its file, and the model."""
    last = so_far.tokens if so_far.has_tokens else (so_far.documents or (str(so_far.folder),))[0]
    paths = {entry.name: last for entry in dataclasses.fields(kind) if entry.metadata.get("positional")}
    if kind.name in REPORTS:
        paths["output"] = str(so_far.folder / REPORTS[kind.name])
        if so_far.is_trained:
            paths["run"] = so_far.model
        if so_far.is_trained and so_far.has_samples:
            paths["samples"] = str(so_far.folder / SAMPLES)
    values = {**paths, **table}
    (settings,) = checked([kind], values, so_far.where(kind.name))
    step = Step(kind.name, "webtext_prep", values, settings, output=values.get("output", ""))
    step.made = so_far.among([*paths.values()])
    return step


def restart(steps: Sequence[Step], first: str) -> None:
    """Make the steps from the one called `first` on start again; all of them if it is empty. Raises UsageError."""
    names = [step.name for step in steps]
    if first and first not in names:
        raise UsageError(
            f"--restart {first} is not a step: {meant(first, names)}choose one of {', '.join(names)}, or name none for "
            "all."
        )
    for step in steps[names.index(first) if first else 0 :]:
        step.restart = True


def shown_command(step: Step, path: Path) -> list[str]:
    """One step as it would be given by hand."""
    again = ["--restart"] if step.restart and step.stage is not None else []
    return [PROGRAMS[step.program], step.name, *step.arguments, *again, "--config", str(path)]


def words_of(step: Step) -> dict[str, str]:
    """The words that run.py's user types for each flag of a step: most are settings of its table."""
    common = {"input", *OF_ALL_STAGES, *engine_settings()}  # run.py has these flags itself
    settings: list[Any] = [kind for kind in (step.settings, step.stage, step.task) if kind is not None]
    words = {}
    for entry in (entry for kind in settings for entry in dataclasses.fields(kind) if entry.name not in common):
        place = f"--set {step.name}.{entry.name}="
        words[flag_name(entry.name)] = f"{place}true" if entry.type == "bool" else place
        words[f"--no-{flag_name(entry.name)[2:]}"] = f"{place}false"
    return {**words, "--output": "--folder", "--restart": f"--restart {step.name}", "--config": "file"}
