"""Running a command as a user meets it: errors in one sentence, exit codes, interrupts, `--debug`.

Exit codes: 0 done, 1 a failure, 2 bad usage or input, 130 interrupted (Ctrl-C).

Advice in words that its reader can type: a command that a pipeline runs names the pipeline's flags, not its own.

A message says "give another --output, or --restart". Whoever started a pipeline has neither: a step of a pipeline says
in `FLAGS` what stands there for each.
"""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping

from command_kit.colours import BOLD, CLEAR, DIM, RED, YELLOW, Paint, is_terminal, wrapped
from command_kit.errors import CommandError, hide_credentials

FLAGS: dict[str, str] = {}
"""What to type instead of a flag in this process. What ends in `=` takes a value."""

_VALUE = r"=\w[\w-]*| [A-Z][A-Z|.:]*\b(?![a-z])| -?\d[\w.]*\b| (?!is\b)[\w.-]+(?= is | needs |: )| \S*/\S*"
_FLAG = re.compile(rf"(?<![\w/-])(--[a-z][a-z0-9-]*)({_VALUE})?")
"""A flag, with its value, the placeholder of one, or a path."""


def in_words(sentence: str, words: Mapping[str, str] = FLAGS) -> str:
    """`sentence` with each flag that `words` knows replaced.

    What stands between backquotes is a command to give by hand, and a flag with a path repeats what was given: both
    stay as they are.

    >>> in_words("give another --output, or --restart", {"--output": "--folder", "--restart": "--restart clean"})
    'give another --folder, or --restart clean'
    >>> in_words("give --state DIR, or --fix=yes", {"--state": "--set clean.state=", "--fix": "--set clean.fix="})
    'give --set clean.state=DIR, or --set clean.fix=yes'
    >>> in_words("--fix maybe is not known: leave out --fix", {"--fix": "--set clean.fix="})
    '--set clean.fix=maybe is not known: leave out --set clean.fix=VALUE'
    """

    def said(found: re.Match[str]) -> str:
        flag, value = found[1], found[2] or ""
        if flag not in words or "/" in value:
            return found[0]
        return words[flag] + (value[1:] or "VALUE" if words[flag].endswith("=") else value)

    parts = sentence.split("`")
    parts[::2] = [_FLAG.sub(said, part) for part in parts[::2]]
    return "`".join(parts)


INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""


WRONG_PLACES = {
    errno.EROFS: "is on a read-only disk",
    errno.ENOTDIR: "lies below a file",
    errno.EISDIR: "is a folder, where a file belongs",
    errno.ENAMETOOLONG: "has too long a name",
}
"""Errors of the system that another path would avoid: what is said of the path."""


def sentence_for(error: BaseException) -> str:
    """One sentence for an error that reached the top."""
    if isinstance(error, CommandError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing {error.filename}" if error.filename else ""
        return f"the disk is full{where}: free some space and run the same command again, it resumes where it stopped."
    if isinstance(error, PermissionError):
        return f"no permission for {error.filename}: choose another path or change its permissions."
    if isinstance(error, OSError) and error.errno in WRONG_PLACES and error.filename:
        return f"{error.filename} {WRONG_PLACES[error.errno]}: choose another path."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
    if isinstance(error, MemoryError):
        return "out of memory: use fewer --workers or smaller shards."
    return f"internal error: {type(error).__name__}: {error} (run again with --debug for the traceback)."


def exit_code_for(error: BaseException) -> int:
    """The exit code for an error that reached the top: 2 where what the user gave has to change, a path for example."""
    if isinstance(error, CommandError):
        return error.exit_code
    is_wrong_place = isinstance(error, OSError) and (error.errno in WRONG_PLACES or isinstance(error, PermissionError))
    return 2 if is_wrong_place else 1


def print_error(program: str, sentence: str) -> None:
    """Print `program: error: sentence` on standard error, without the credentials of any URL in it.

    Flags are called as `FLAGS` has them.
    """
    paint, begin = Paint.of(sys.stderr), CLEAR if is_terminal(sys.stderr) else ""
    print(f"{begin}{program}: {paint('error:', RED, BOLD)} {hide_credentials(in_words(sentence))}", file=sys.stderr)


def print_warning(program: str, sentence: str) -> None:
    """Print `program: warning: sentence` in the same way."""
    paint, begin = Paint.of(sys.stderr), CLEAR if is_terminal(sys.stderr) else ""
    print(f"{begin}{program}: {paint('warning:', YELLOW)} {hide_credentials(in_words(sentence))}", file=sys.stderr)


def print_note(sentence: str) -> None:
    """Print a sentence on standard error in grey: why nothing is to be seen for the next seconds."""
    print(Paint.of(sys.stderr)(wrapped(sentence, sys.stderr), DIM), file=sys.stderr, flush=True)


def run_command(
    program: str,
    body: Callable[[], int | None],
    *,
    debug: bool = False,
    resumes: bool = True,
    again: str = "the same command",
) -> int:
    """Call `body` and return the exit code of the process.

    An exception becomes one sentence on standard error, `program: error: ...`; with `debug` its traceback comes first.
    User names and passwords in URLs are left out of both.
    `resumes` says whether the command resumes where an interrupt stopped it, and `again` how it is then given.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file name that is not UTF-8 is printed like this, and in JSON reads back.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = body() or 0
        # Here, and not at exit, where a reader that went away would make a traceback.
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        how = f"; {again} resumes from here" if resumes else ""
        print(f"{program}: {Paint.of(sys.stderr)('interrupted', YELLOW)}{how}.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, a pager) went away: not an error, but nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + getattr(signal, "SIGPIPE", 13)
    except Exception as error:
        if debug:
            print(hide_credentials(traceback.format_exc()), end="", file=sys.stderr)
        print_error(program, sentence_for(error))
        return exit_code_for(error)
