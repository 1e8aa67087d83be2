"""The command `webtext`: one subcommand a stage, each with the flags that its settings define.

Stages are found in `stages/`; everything heavy is imported when a stage runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import pkgutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from command_kit import add_flags, available_cores, run_command, setting, settings_from
from webtext_prep import inspection, stages
from webtext_prep.documents.inputs import find_inputs, spool_standard_input
from webtext_prep.errors import InputError
from webtext_prep.running.job import Job, Summary, refuse_foreign_output, show
from webtext_prep.running.stage import Stage

DESCRIPTION = """\
From a list of URLs to clean, deduplicated documents and GPT-2 token binaries, stage by stage.
Each stage reads what the one before it wrote:"""

EPILOG = """\
A stage that was interrupted, or killed, goes on when the same command is given again. `webtext STAGE --help`
lists a stage's settings; each is also a key for its table in a --config file.

example:
  webtext blacklist --input urls.txt --output work/urls
  webtext download  --input work/urls --output work/pages
  webtext merge     --input work/pages --output work/merged
  webtext clean     --input work/merged --output work/clean
  webtext dedup     --input work/clean --output work/unique
  webtext tokenize  --input work/unique --output work/corpus"""


@dataclass(frozen=True)
class RunSettings:
    """What every stage is told besides its own settings."""

    input: tuple[str, ...] = setting((), "what to read: files, folders, globs", metavar="PATH", group="run")
    output: str = setting("", "what to write", metavar="PATH", group="run")
    workers: int = setting(0, "tasks at once; 0 stands for all cores", group="run")
    keep_dropped: bool = setting(False, "also write the dropped documents, with their reasons", group="run")


def find_stages() -> dict[str, type[Stage]]:
    """Every stage in `stages/`, by its command, in the order in which a document passes them."""
    found: list[type[Stage]] = []
    for module in pkgutil.iter_modules(stages.__path__):
        namespace = vars(importlib.import_module(f"{stages.__name__}.{module.name}"))
        found += [
            entry
            for entry in namespace.values()
            if isinstance(entry, type) and issubclass(entry, Stage) and hasattr(entry, "order")
        ]
    return {stage.name: stage for stage in sorted(dict.fromkeys(found), key=lambda stage: stage.order)}


def build_parser(known: dict[str, type[Stage]]) -> argparse.ArgumentParser:
    """The parser with a subcommand for each stage and for `inspect`."""
    parser = argparse.ArgumentParser(
        prog="webtext", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="STAGE", required=True, title="stages")
    for stage in known.values():
        command = commands.add_parser(
            stage.name,
            help=stage.summary,
            description=stage.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_flags(command, RunSettings)
        again = command.add_mutually_exclusive_group()
        again.add_argument("--resume", action="store_true", help="go on where an earlier run stopped (always so)")
        again.add_argument("--restart", action="store_true", help="discard what an earlier run made and start anew")
        add_common_flags(command)
        add_flags(command, stage)
    inspection.add_command(commands)
    return parser


def add_common_flags(command: argparse.ArgumentParser) -> None:
    """`--config`, `--json`, `--debug`."""
    command.add_argument(
        "--config", metavar="FILE.toml", help="a TOML file with settings in its table [STAGE]; flags win"
    )
    command.add_argument("--json", action="store_true", help="print the closing summary as one JSON object on stdout")
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _names(settings_class: type) -> set[str]:
    return {field.name for field in dataclasses.fields(settings_class)}


def run_stage(stage_class: type[Stage], arguments: argparse.Namespace) -> Summary:
    """Run one stage as its command line and settings file say."""
    ours, theirs = _names(RunSettings), _names(stage_class)
    settings = settings_from(
        RunSettings, arguments, command=stage_class.name, config=arguments.config, ignore=theirs - ours
    )
    stage = settings_from(
        stage_class, arguments, command=stage_class.name, config=arguments.config, ignore=ours - theirs
    )
    if not settings.output:
        kind = "PREFIX" if stage.output_is_prefix else "DIR"
        raise InputError(f"webtext {stage.name} needs --output {kind}: say where to write.")
    if settings.workers < 0:
        raise InputError(f"--workers must not be negative (0 stands for all cores), but is {settings.workers}.")
    output = Path(settings.output)
    paths = list(settings.input)
    if not paths and stage.reads_standard_input and not sys.stdin.isatty():
        paths = ["-"]
    if not paths:
        raise InputError(f"webtext {stage.name} needs --input PATH: say what to read ({stage.input_kinds}).")
    inputs = _find(stage, paths, output)
    job = Job(
        stage,
        inputs,
        output,
        workers=settings.workers or available_cores(),
        keep_dropped=settings.keep_dropped,
        restart=arguments.restart,
    )
    return job.run()


def _find(stage: Stage, paths: list[str], output: Path) -> list[Path]:
    files = [path for path in paths if path != "-"]
    found = (
        find_inputs(files, accepts=stage.accepts, kinds=stage.input_kinds, output=output)
        if files or "-" not in paths
        else []
    )
    if "-" in paths:
        if not stage.reads_standard_input:
            raise InputError(f"webtext {stage.name} does not read standard input: give a file or folder.")
        refuse_foreign_output(stage, output, found)
        found.append(spool_standard_input(stage.state_folder(output)))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `webtext`; returns the exit code."""
    known = find_stages()
    arguments = build_parser(known).parse_args(argv)

    def body() -> int:
        if arguments.command == inspection.COMMAND:
            return inspection.run(arguments)
        show(run_stage(known[arguments.command], arguments), as_json=arguments.json)
        return 0

    # A polite kill ends a stage as Ctrl-C does: workers stopped, nothing half-written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run_command("webtext", body, debug=arguments.debug)


if __name__ == "__main__":
    sys.exit(main())
