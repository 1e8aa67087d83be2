"""Runs a whole pipeline, from URLs to a model that writes text, as one TOML file describes it.

    ./uvw run pipelines/run.py quickstart
    ./uvw run pipelines/run.py openwebtext --urls my_urls.txt
    ./uvw run pipelines/run.py my_pipeline.toml --check

Each table of the file is one command, `webtext STAGE` or `gpt2 COMMAND`, with that command's settings; they run in the
order of the file, each on what the one before it wrote. All settings are checked before the first one runs. The same
command again resumes where it stopped, and each step can also be given by hand: its command line is printed first.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_kit import CommandError, UsageError, duration, run_command, setting, write_json, write_text
from command_kit.command import PARENT
from command_kit.settings import check_value, make_settings
from webtext_prep.cli import RunSettings, find_stages, job_of
from webtext_prep.errors import InputError
from webtext_prep.running.space import Estimate, Needs, readable
from webtext_prep.running.stage import Stage

HERE = Path(__file__).resolve().parent
PROGRAMS = {"webtext_prep": "webtext", "gpt2_train": "gpt2"}
MODEL_COMMANDS = ("train", "evaluate", "generate")
TEXT_SUFFIX = "_text_document"


@dataclass(frozen=True)
class Pipeline:
    """The table `[pipeline]`: what concerns the whole run."""

    description: str = setting("", "one line, shown when the run starts")
    folder: str = setting("", "where everything is written; runs/NAME without it")
    site: bool = setting(False, "serve the interpreter's documentation on loopback and take the URL list from there")


@dataclass
class Step:
    """One command of the pipeline and where it reads and writes."""

    name: str
    program: str
    table: dict[str, Any]
    arguments: list[str] = field(default_factory=list)
    output: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    stage: Stage | None = None
    settings: RunSettings | None = None


def read_pipeline(name: str) -> tuple[Path, dict[str, Any]]:
    """The file that `name` means, a path or a pipeline of this folder, and its tables. Raises UsageError."""
    path = Path(name)
    if not name.endswith(".toml"):
        path = HERE / f"{name}.toml"
        with contextlib.suppress(ValueError):
            path = path.relative_to(Path.cwd())  # shorter in the command lines that are shown
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in HERE.glob("*.toml")))
        raise UsageError(f"no pipeline {name}: give the path of a TOML file, or one of {shipped}.")
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error


def plan(path: Path, tables: dict[str, Any], folder: Path, first_input: list[str], gpus: int = 0) -> list[Step]:
    """The steps of a pipeline, each wired to the one before it.

    Settings are checked here, and whether model, batch and layout fit together and the `gpus` of this machine, so that
    a mistake in the last table is found before the first command runs.
    Raises UsageError naming the table and the key.
    """
    stages = find_stages()
    steps: list[Step] = []
    previous: list[str] = list(first_input)
    corpus, model = folder / "corpus", str(folder / "model")
    for name, table in tables.items():
        if name == "pipeline":
            continue
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} stands outside a table; every setting belongs to a [command].")
        if name in stages:
            own = {key for key in table if key in RunSettings.__dataclass_fields__}
            settings = make_settings(RunSettings, {key: table[key] for key in own}, f"{path} [{name}]")
            stage = make_settings(stages[name], {k: v for k, v in table.items() if k not in own}, f"{path} [{name}]")
            output = corpus if stages[name].output_is_prefix else folder / name
            step = Step(name, "webtext_prep", table, output=table.get("output", str(output)), stage=stage)
            inputs = table.get("input") or previous
            if not inputs:
                raise UsageError(f"the first stage, {name}, has no input: give it with --input PATH.")
            step.arguments = ["--input", *inputs, "--output", step.output]
            step.settings = dataclasses.replace(settings, input=tuple(inputs), output=step.output)
            previous = [step.output]
            if stages[name].output_is_prefix:
                corpus = Path(step.output)
        elif name in MODEL_COMMANDS:
            check_model_table(path, name, table, gpus)
            if name == "train":
                model = table.get("output", model)
            step = Step(name, "gpt2_train", table, output=model)
            step.arguments = model_arguments(name, table, model, str(corpus) + TEXT_SUFFIX)
        else:
            known = ", ".join([*stages, *MODEL_COMMANDS])
            raise UsageError(f"{path}: no command [{name}]; known are {known}.")
        steps.append(step)
    if not steps:
        raise UsageError(f"{path} describes no step: add a table such as [clean].")
    return steps


def model_arguments(name: str, table: dict[str, Any], model: str, data: str) -> list[str]:
    """The paths given to a `gpt2` command, where its table does not name others."""
    wanted = {
        "train": {"data": data, "output": model},
        "evaluate": {"checkpoint": model, "data": data},
        "generate": {"checkpoint": model},
    }[name]
    return [part for key, value in wanted.items() if key not in table for part in (f"--{key}", value)]


def check_model_table(path: Path, name: str, table: dict[str, Any], gpus: int) -> None:
    """Raise UsageError for a setting that the `gpt2` command does not have, or that does not fit the others."""
    from gpt2_train.cli import settings_class
    from gpt2_train.config import TrainSettings
    from gpt2_train.layout import check_layout

    try:
        settings: Any = make_settings(settings_class(name), table, f"{path} [{name}]")
        if isinstance(settings, TrainSettings):
            check_layout(settings, 0 if settings.device in ("cpu", "mps") else gpus)
    except UsageError as error:
        raise UsageError(str(error) if str(path) in str(error) else f"{path} [{name}]: {error}") from None


def estimates(steps: list[Step]) -> Iterator[str]:
    """What each stage will need of disk and memory, as far as its input, or that of a step before it, is there."""
    before: Needs | None = None
    outputs = 0
    for step in steps:
        if step.stage is None or step.settings is None:
            continue
        found = _estimate(step.stage, step.settings, before)
        before = found.needs if found is not None else None
        if found is not None:
            outputs += found.needs.output
            yield found.sentence()
            problem = found.problem() if step.settings.space_check else None
            if problem is not None:
                yield f"  it will not fit: {problem}"
    if outputs:
        yield f"all outputs together: about {readable(outputs)}"


def _estimate(stage: Stage, settings: RunSettings, before: Needs | None) -> Estimate | None:
    """The estimate of one stage: from its input, or if that is not there yet from the output of the step before it."""
    try:
        job = job_of(stage, settings)
        return job.estimate(job.sample())
    except InputError:
        if before is None:
            return None
        return job_of(stage, dataclasses.replace(settings, input=())).estimate(before.as_input())


def count_gpus(tables: dict[str, Any]) -> int:
    """The GPUs of this machine, if the pipeline trains: asking takes the seconds in which torch is loaded."""
    if "train" not in tables:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@contextlib.contextmanager
def documentation_site(folder: Path) -> Iterator[None]:
    """Serve the documentation while the block runs; its URL list is `urls.txt` in `folder`.

    The port is kept from one run to the next: the addresses of pages that were fetched must stay the same.
    """
    kept = folder / "site.json"
    port = json.loads(kept.read_text())["port"] if kept.exists() else 0
    process = subprocess.Popen(
        [sys.executable, str(HERE / "documentation_site.py"), "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if process.stdout is None or not (base := process.stdout.readline().strip()):
        raise CommandError(f"the documentation could not be served on port {port}: it is taken, remove {kept}.")
    try:
        write_json(kept, {"port": int(base.rsplit(":", 1)[1])})
        urls = folder / "urls.txt"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{base}/urls.txt") as answer:
            text = answer.read().decode()
        if not urls.exists() or urls.read_text(encoding="utf-8") != text:
            write_text(urls, text)
        yield
    finally:
        process.terminate()
        process.communicate()


def shown_command(step: Step, path: Path) -> list[str]:
    """One step as it would be given by hand."""
    return [PROGRAMS[step.program], step.name, *step.arguments, "--config", str(path)]


def run_step(step: Step, path: Path, folder: Path) -> None:
    """Run one command; its JSON summary is kept in `step.summary`.

    Raises CommandError if it fails, KeyboardInterrupt where Ctrl-C or SIGTERM stops it.
    """
    shown, *rest = shown_command(step, path)
    command = [sys.executable, "-m", step.program, *rest]
    print(f"\n$ {shlex.join([shown, *rest])}", file=sys.stderr, flush=True)
    environment = os.environ | {PARENT: str(os.getpid())}
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, env=environment)
    is_stopped = False

    def stop(*_: Any) -> None:
        nonlocal is_stopped
        is_stopped = True
        process.terminate()

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        output, _ = process.communicate()
    except KeyboardInterrupt:
        # The command got the same Ctrl-C and is putting its work in order.
        process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    if is_stopped:
        raise KeyboardInterrupt
    if process.returncode:
        failure = CommandError(
            f"the step [{step.name}] (`{shown} {step.name}`) ended with exit code {process.returncode}: fix what it "
            "says above, then run the same command again; it resumes from there."
        )
        failure.exit_code = process.returncode if process.returncode > 0 else 1
        raise failure
    with contextlib.suppress(ValueError, IndexError):
        step.summary = json.loads(output.decode("utf-8").splitlines()[-1])
    write_json(folder / "pipeline.json", {**_read_json(folder / "pipeline.json"), step.name: step.summary})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def closing(steps: list[Step], folder: Path, seconds: float) -> str:
    """What a run ends with: the funnel, the losses, the text, and where everything is."""
    lines = ["", "=" * 72, f"Done in {duration(seconds)}.", ""]
    for step in steps:
        found = step.summary
        if step.program == "webtext_prep":
            tokens = f"  {found['tokens']:,} tokens" if "tokens" in found else ""
            lines.append(f"  {step.name:<10} {found.get('in', 0):>8,} -> {found.get('out', 0):>8,}{tokens}")
    for step in steps:
        if step.name == "evaluate":
            lines += ["", *losses(step.summary)]
        if step.name == "generate":
            lines += ["", "What the model writes:"]
            for sample in step.summary.get("samples", ()):
                lines += ["", *(f"  | {line}" for line in (sample["prompt"] + sample["text"]).splitlines())]
    lines += ["", "Where everything is:"]
    lines += [f"  {step.name:<10} {step.output}" for step in steps if step.name not in ("evaluate", "generate")]
    lines += [f"  {'summaries':<10} {folder / 'pipeline.json'}"]
    if any(step.name == "train" for step in steps):
        lines += ["", "Generate more:", f"  {shlex.join(write_more(steps))}"]
    return "\n".join(lines)


def write_more(steps: list[Step]) -> list[str]:
    """The command that lets the pipeline's model write: with the prompt of its own [generate], if it has one."""
    command = ["./uvw", "run", "gpt2", "generate", "--checkpoint"]
    command.append(next(step.output for step in steps if step.name == "train"))
    prompts = next((step.table.get("prompt") for step in steps if step.name == "generate"), None)
    return [*command, "--prompt", prompts[0]] if prompts else command


def losses(found: dict[str, Any]) -> list[str]:
    """The held-out loss beside that of a unigram model of the same text."""
    if "loss" not in found:
        return []
    lines = [f"  held-out loss     {found['loss']:.3f} nats per token (perplexity {found['perplexity']:,.1f})"]
    if "unigram_loss" in found:
        lines.append(f"  unigram model     {found['unigram_loss']:.3f} nats per token, on the same text")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipeline", nargs="?", default="quickstart", help="a name or a TOML file (default: quickstart)")
    parser.add_argument(
        "--input",
        "--urls",
        nargs="+",
        default=[],
        metavar="PATH",
        help="what the first stage reads: URL lists, or texts where the file begins with [merge]",
    )
    parser.add_argument("--folder", help="where everything is written, instead of what the file says")
    parser.add_argument("--until", metavar="COMMAND", help="stop after this step")
    parser.add_argument("--check", action="store_true", help="check all settings, show the steps, and run none")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    arguments = parser.parse_args(argv)
    return run_command("run.py", lambda: play(arguments), debug=arguments.debug)


def play(arguments: argparse.Namespace) -> int:
    """Run the steps of one pipeline in order."""
    start = time.monotonic()
    path, tables = read_pipeline(arguments.pipeline)
    whole = make_settings(Pipeline, check_value(dict, tables.get("pipeline", {}), "pipeline", str(path)), str(path))
    folder = Path(arguments.folder or whole.folder or Path("runs") / path.stem)
    with contextlib.ExitStack() as stack:
        first = [*([str(folder / "urls.txt")] if whole.site else []), *arguments.input]
        steps = plan(path, tables, folder, first, count_gpus(tables))
        names = [step.name for step in steps]
        if arguments.until is not None and arguments.until not in names:
            raise UsageError(f"--until {arguments.until} is not in {path.name}: choose one of {', '.join(names)}.")
        last = names.index(arguments.until) + 1 if arguments.until else len(steps)
        if arguments.check:
            print("\n".join(shlex.join(shown_command(step, path)) for step in steps[:last]))
            for line in estimates(steps[:last]):
                print(line, file=sys.stderr)
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        if whole.site:
            stack.enter_context(documentation_site(folder))
        print(f"{path.stem}: {whole.description or 'a pipeline'}, in {folder}", file=sys.stderr)
        for step in steps[:last]:
            run_step(step, path, folder)
    print(closing(steps[:last], folder, time.monotonic() - start))
    return 0


if __name__ == "__main__":
    sys.exit(main())
