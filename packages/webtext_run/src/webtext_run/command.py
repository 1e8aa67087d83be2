"""Runs a whole pipeline, from URLs, dumps, web archives or texts to a model that writes, as one TOML file describes it.

    webtext-run quickstart
    webtext-run own_text --input MY_TEXTS
    webtext-run openwebtext --urls MY_URLS.txt --check
    webtext-run my_pipeline.toml --set train.steps=60

In a checkout `./uvw run pipelines/run.py` is the same command.

Each table of the file is one command, `webtext COMMAND` or `gpt2 COMMAND`, with that command's settings; they run in
the order of the file, each on what the one before it wrote. Everything that can be known beforehand is checked before
the first one runs. The same command again resumes where it stopped, `--restart` starts again, and each step can also be
given by hand: its command line is printed first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from command_kit import CommandError, Parser, UsageError, add_flags, run_command, write_json, write_text
from command_kit.colours import Paint, aligned
from command_kit.command import print_error, print_note
from webtext_prep.running.claims import locked
from webtext_prep.running.settings import RunSettings, add_engine_flags, find_engines
from webtext_run import steps
from webtext_run.ablation.corpora import FOLDER, compare, plan_arms
from webtext_run.preflight import check
from webtext_run.runner import closing, run_steps

LOCK = ".run"
"""The lock in the folder of a pipeline, held by the one that is at work."""


@contextlib.contextmanager
def documentation_site(folder: Path) -> Iterator[None]:
    """Serve the documentation while the block runs; its URL list is `urls.txt` in `folder`.

    The port is kept from one run to the next: the addresses of pages that were fetched must stay the same. The first
    time it is the one that `documentation_site.py` takes alone, where that is free, so that these are the same on most
    machines.
    """
    kept = folder / "site.json"
    port = json.loads(kept.read_text())["port"] if kept.exists() else None
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "webtext_run.documentation_site", "--until-input-ends"),
            *([] if port is None else ["--port", str(port)]),
        ],
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


def overview() -> str:
    """The pipelines that there are, and how to start one."""
    rows = aligned([[name, description] for name, description in steps.shipped().items()], "<<")
    start = f"to try all of it, with nothing of your own:\n  {shlex.join([*steps.PREFIX, steps.RUN])} quickstart"
    return "\n".join(["pipelines:", *(f"  {row}" for row in rows), "", start])


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    parser = make_parser()
    if not words:
        print(
            f"{parser.format_usage()}\n{overview()}\nall flags: {shlex.join([*steps.PREFIX, steps.RUN])} --help",
            file=sys.stderr,
        )
        return 2
    arguments = parser.parse_args(words)
    arguments.words = [*words]
    again = "the same command" + ("" if arguments.restart is None else " without --restart")
    return run_command(steps.NAME, lambda: play(arguments), debug=arguments.debug, again=again)


def make_parser() -> Parser:
    """The parser of the command line."""
    parser = Parser(prog=steps.NAME, description=__doc__, epilog=overview())
    parser.add_argument("pipeline", help="a name from the list below, or a TOML file")
    parser.add_argument(
        "--input",
        "--urls",
        nargs="+",
        default=[],
        metavar="PATH",
        help="what the first stage reads: URL lists, dumps, web archives, or texts where the file begins with [merge]",
    )
    parser.add_argument("--folder", help="where everything is written, instead of what the file says")
    parser.add_argument("--until", metavar="COMMAND", help="stop after this step")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.SETTING=VALUE",
        help="use another value than the file's, such as train.steps=60; may be given several times",
    )
    parser.add_argument(
        "--check", action="store_true", help="check everything that can be known, show the steps, and run none"
    )
    parser.add_argument(
        "--restart",
        nargs="?",
        const="",
        metavar="STEP",
        help="discard what earlier runs made, from this step on, or of all steps if none is named, and start again",
    )
    ablation = parser.add_argument_group("to compare values of one setting (docs/guide/ablate.md)")
    ablation.add_argument(
        "--ablate",
        metavar="STAGE.SETTING=A,B,...",
        help="make the token files once for each value, the first the baseline, and say which is better; none leaves "
        "the setting out, a+b is a list",
    )
    ablation.add_argument("--minutes", type=float, help="for the training of all of them together; 20 without it")
    ablation.add_argument(
        "--want", nargs="+", default=[], metavar="PATH", help="texts that the corpus is for, which decide"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    add_flags(
        parser,
        RunSettings,
        skip=RunSettings.__dataclass_fields__.keys() - steps.OF_ALL_STAGES,
        group="for every stage whose table does not say otherwise",
    )
    add_engine_flags(parser, find_engines())
    return parser


def play(arguments: argparse.Namespace) -> int:
    """Check the steps of one pipeline, and run them in order."""
    start = time.monotonic()
    path, whole, folder, planned, arms = steps.prepared(arguments, plan_arms)
    with contextlib.ExitStack() as stack:
        is_new = not folder.exists()
        lock = locked(folder / LOCK, folder, steps.NAME, "--folder")
        if not (is_new or arguments.check):
            stack.enter_context(lock)
        found = check(planned, path, folder)
        if arguments.check:
            print("\n".join(shlex.join(steps.shown_command(step, path)) for step in planned), flush=True)
            for line in found.facts:
                print(line, file=sys.stderr)
        for problem in found.problems[:-1]:
            print_error(steps.NAME, problem)
        if found.problems:
            raise UsageError(found.problems[-1])
        if arguments.check:
            return 0
        if is_new:
            stack.enter_context(lock)
        if whole.site:
            print_note("looking for the documentation that comes with Python and its packages")
            stack.enter_context(documentation_site(folder))
        if arms is not None:
            run_steps(arms.shared, path, folder, arguments.debug)
            for name, own in arms.of_each.items():
                run_steps(own, path, folder / FOLDER / name, arguments.debug)
            restarts = arguments.restart is not None
            return compare(arms, folder, minutes=arguments.minutes, want=arguments.want, restart=restarts)
        run_steps(planned, path, folder, arguments.debug)
    seconds, paint = time.monotonic() - start, Paint.of(sys.stdout)
    print(
        closing(planned, folder, seconds, paint, is_first_try=whole.site, rest=command_of_the_rest(arguments, planned))
    )
    return 0


def command_of_the_rest(arguments: argparse.Namespace, planned: Sequence[steps.Step]) -> list[str]:
    """The command that also trains, where --until stopped before that; empty where there is none."""
    is_left = "train" in steps.read_pipeline(arguments.pipeline)[1] and not any(
        step.name == "train" for step in planned
    )
    if arguments.until is None or not is_left or not steps.has_trainer():
        return []
    left_out = {"--until": arguments.until, "--restart": arguments.restart}
    words, before = [], ""
    for word in arguments.words:
        is_value = before in left_out and word == left_out[before]
        if not is_value and word.partition("=")[0] not in left_out:
            words.append(word)
        before = word
    return [*steps.PREFIX, steps.RUN, *words]
