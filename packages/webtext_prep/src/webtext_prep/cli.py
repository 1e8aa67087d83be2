"""The command `webtext`: its subcommands, each with the flags that its settings define.

Stages are found in `stages/`, the commands that look at what they made in `commands/`; everything heavy is imported
when a stage runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import signal
import sys
from collections.abc import Callable, Sequence

from command_kit import Parser, add_flags, add_shell_flags, run_command, settings_from
from command_kit.plugins import find_plugins
from command_kit.settings import given_values, make_several, source_name
from webtext_prep import DISTRIBUTION, EXTRACTORS, commands, stages
from webtext_prep.commands import Command
from webtext_prep.errors import InputError
from webtext_prep.running import settings
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Stage
from webtext_prep.running.summary import show, show_findings

DESCRIPTION = """\
From a list of URLs to clean, deduplicated documents and GPT-2 token files, stage by stage.
Each stage reads what the one before it wrote:"""

EPILOG = """\
A stage that was interrupted, or killed, resumes when the same command is given again. `webtext STAGE --help`
lists a stage's settings; each is also a key for its table in a --config file.

example:
  webtext blacklist --input urls.txt --output work/urls
  webtext download  --input work/urls --output work/pages
  webtext merge     --input work/pages --output work/merged
  webtext clean     --input work/merged --output work/clean
  webtext dedup     --input work/clean --output work/unique
  webtext tokenize  --input work/unique --output work/corpus"""


HEADINGS = {"get documents": 10, "make a corpus": 40, "make token files, publish": 75}
"""Of the stages in `--help`: the `Stage.order` from which on they stand below each."""


def find_stages() -> dict[str, type[Stage]]:
    """Every stage, in `stages/` or of the entry-point group `webtext.stages`, in the order in which a document passes
    them."""
    found = find_plugins(stages, Stage, group="webtext.stages")
    return {stage.name: stage for stage in sorted(found, key=lambda stage: stage.order)}


def find_commands() -> dict[str, type[Command]]:
    """Every command that makes no documents, in `commands/` or of the entry-point group `webtext.commands`."""
    found = find_plugins(commands, Command, group="webtext.commands")
    return {command.name: command for command in sorted(found, key=lambda command: command.order)}


def find_one(name: str) -> tuple[dict[str, type[Stage]], dict[str, type[Command]]]:
    """The one stage or other command of that name, whose module or entry point is called so too; else all of them.

    Nothing of the others is imported: that takes longer than many a command.
    """
    known = {one.name: one for one in find_plugins(stages, Stage, group="webtext.stages", only=name)}
    others = {one.name: one for one in find_plugins(commands, Command, group="webtext.commands", only=name)}
    if [*known, *others] == [name]:
        return known, others
    return find_stages(), find_commands()


def build_parser(
    known: dict[str, type[Stage]], others: dict[str, type[Command]], only: str | None = None
) -> argparse.ArgumentParser:
    """The parser with a subcommand for each stage and each other command.

    Of all subcommands, or of `only` one, it knows the flags, too: first the command's own, last the engines'.
    """
    parser = Parser(prog="webtext", description=DESCRIPTION, epilog=EPILOG)
    whole = functools.partial(build_parser, known, others)
    add_shell_flags(parser, DISTRIBUTION, others=EXTRACTORS, whole=whole)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="stages and commands")
    first_of = {
        next((name for name, stage in known.items() if stage.order >= order), ""): heading
        for heading, order in reversed(HEADINGS.items())
    }
    subparsers.headings = first_of | {next(iter(others), ""): "look at it"}  # type: ignore[attr-defined]
    engines = settings.find_engines()
    both: list[type[Stage] | type[Command]] = [*known.values(), *others.values()]
    for one in both:
        own = subparsers.add_parser(one.name, help=one.summary, description=one.__doc__)
        if only not in (None, one.name):
            continue
        if issubclass(one, Stage):
            own.add_argument("places", nargs="*", metavar="PATH", help="what to read, as with --input")
        add_flags(own, one)
        if issubclass(one, Stage):
            add_flags(own, settings.RunSettings)
        general = own.add_argument_group("general")
        if issubclass(one, Stage):
            again = general.add_mutually_exclusive_group()
            again.add_argument("--resume", action="store_true", help="resume an earlier run (the default)")
            again.add_argument("--restart", action="store_true", help="discard an earlier run and start from scratch")
        if issubclass(one, Stage) or one.has_settings_file:
            general.add_argument(
                "--config", metavar="FILE.toml", help=f"a TOML file with settings in its table [{one.name}]; flags win"
            )
        general.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
        general.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if issubclass(one, Stage):
            settings.add_engine_flags(own, engines)
    return parser


def make_job(stage_class: type[Stage], arguments: argparse.Namespace) -> Job:
    """One stage with its inputs and output, as its command line and settings file say."""
    if arguments.places:
        flagged = arguments.input if isinstance(arguments.input, list) else []
        arguments.input = [*arguments.places, *flagged]
    where = source_name(arguments.config)
    table, given = given_values(arguments, command=stage_class.name, config=arguments.config)
    flags = {name: value for name, value in given.items() if name in settings.setting_names(stage_class)}
    make = functools.partial(make_several, flags=flags.keys())
    stage, run, of_engine = settings.read_table(stage_class, table | flags, where, make)
    if own := stage.writes.beside(run.input):
        if run.output not in ("", own):
            raise InputError(f"webtext {stage.name} writes {own}, next to what it reads: leave out --output.")
        run = dataclasses.replace(run, output=own)
    if not run.output:
        kind = "PREFIX" if stage.writes.made == "tokens" else "DIR"
        raise InputError(f"webtext {stage.name} needs --output {kind}: say where to write.")
    paths = run.input
    if not paths and stage.reads.has_standard_input and not sys.stdin.isatty():
        paths = ("-",)
    if not paths and not (stage.reads.before or stage.reads.after):
        raise InputError(f"webtext {stage.name} needs --input PATH: say what to read ({stage.reads.kinds}).")
    if "-" in paths and not stage.reads.has_standard_input:
        raise InputError(f"webtext {stage.name} does not read standard input: give a file or folder.")
    engine = settings.make_engine(run.engine, run.workers, of_engine, where=where, flags=flags.keys())
    return Job(stage, dataclasses.replace(run, input=paths), engine, restart=arguments.restart)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `webtext`; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command("webtext", lambda: _run(words), debug="--debug" in words)


def _run(words: list[str]) -> int:
    asked = next(iter(words), "")
    known, others = find_one(asked) if words != ["--version"] else ({}, {})
    arguments = build_parser(known, others, asked).parse_args(words)

    def body() -> int:
        if arguments.command in others:
            kind = others[arguments.command]
            config = arguments.config if kind.has_settings_file else None
            return look(settings_from(kind, arguments, command=kind.name, config=config), as_json=arguments.json)
        return work_on(make_job(known[arguments.command], arguments), as_json=arguments.json)

    return run_subcommand(body, restart=getattr(arguments, "restart", False), debug=arguments.debug)


def run_subcommand(body: Callable[[], int], *, restart: bool = False, debug: bool = False) -> int:
    """Call the `body` of a subcommand, which makes its output again if `restart`; returns the exit code."""
    # SIGTERM ends a stage as Ctrl-C does: workers stopped, nothing half-written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    again = "the same command" + (" without --restart" if restart else "")
    return run_command("webtext", body, debug=debug, again=again)


def look(command: Command, *, as_json: bool) -> int:
    """Show what a command finds; returns the exit code."""
    found = command.find()
    show_findings(found, as_json=as_json)
    return found.exit_code


def work_on(job: Job, *, as_json: bool) -> int:
    """Run a job, or show what it would do, and close its engine; returns the exit code."""
    with contextlib.closing(job.engine):
        if job.stage.is_preview:
            show_findings(job.preview(), as_json=as_json)
        else:
            show(job.run(), as_json=as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
