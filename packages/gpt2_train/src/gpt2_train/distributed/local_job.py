"""A job on this machine: a command that is to use four GPUs starts itself four times.

It does so by the part of torchrun that runs the processes of one machine: each gets torchrun's variables, a session of
its own, so that Ctrl-C on a terminal reaches the command alone, and a file for its error. The command passes signals
on; when one process fails it ends the others, and the sentence of the first is what the user reads.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    SubprocessContext,
    start_processes,
)

from command_kit import write_text
from command_kit.machine import physical_cores
from command_kit.settings import as_table, to_toml
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.layout import JOB_FOLDER
from gpt2_train.distributed.jobs import ERRORS, LOG_LEVEL, PARENT, POLL_SECONDS, SILENT, STOP_SIGNALS, words_file

GRACE_SECONDS = 2.0
"""Seconds that the other processes may take to report their own errors after one has failed."""
STOP_SECONDS = 60.0
"""Seconds that they may take to save after a signal, once one of them has."""

_ERROR_OF_A_LIBRARY = re.compile(r"(\[rank\d+\]:)?\[[EF]\d{4}|terminate called|  what\(\)|.*\bNCCL (WARN|ERROR)")
MOST_WORDS = 8
"""Lines that are shown of what the libraries of a failed process said: a watchdog writes pages of stack traces."""


class LocalJob:
    """Processes on this machine that run the same command.

    Args:
        command: of `gpt2`, with what else stands there by its place.
        settings: all of its settings, which each process is given in a file.
        size: how many processes.
        threads: CPU threads of each; the cores shared among them without it.
        as_json: whether the first one prints the result as one JSON object.
        debug: whether to show the traceback of an error.
        resumes: what a user does after a process was killed, added to the sentence.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: Sequence[Any],
        size: int,
        *,
        threads: int | None = None,
        as_json: bool = False,
        debug: bool = False,
        resumes: str = "the command ends with it",
    ) -> None:
        self.command, self.settings, self.size, self.resumes = list(command), list(settings), size, resumes
        self.as_json, self.debug = as_json, debug
        self.threads = threads or max(1, physical_cores() // size)
        self.signal = 0
        self.ended_first: dict[int, int] = {}
        """The exit codes of those that had ended when it was first seen that one has failed."""
        self._processes: dict[int, Any] = {}

    def run(self) -> int:
        """Start the processes and wait for them; return the exit code, 128 plus its number after a signal.

        Raises Gpt2Error with the sentence of the first process that failed, KeyboardInterrupt after Ctrl-C.
        """
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it tells what is told here
        before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP, signal.SIGQUIT)}
        with tempfile.TemporaryDirectory(prefix="gpt2-job-") as folder:
            job: PContext | None = None
            try:
                job = self._start(Path(folder))
                self._wait()
            except SignalException as error:  # torch's own, while processes are started
                self.signal = int(error.sigval)
            finally:
                if job is not None:
                    job.close(signal.SIGKILL)
                for number, handler in before.items():
                    signal.signal(number, handler)
            return self._outcome(Path(folder), job)

    def _start(self, folder: Path) -> PContext:
        shared: dict[str, object] = {
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.size,
            "OMP_NUM_THREADS": self.threads,
        }
        shared |= {JOB_FOLDER: folder, PARENT: os.getpid()}
        if os.environ.get(LOG_LEVEL) == SILENT:
            shared[LOG_LEVEL] = ERRORS
        ranks = range(self.size)
        environments = {
            rank: {name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            for rank in ranks
        }
        table = {name: value for one in self.settings for name, value in as_table(one).items()}
        write_text(config := folder / "settings.toml", to_toml({self.command[0]: table}), durable=False)
        flags = [flag for flag, is_given in (("--json", self.as_json), ("--debug", self.debug)) if is_given]
        words = dict.fromkeys(ranks, ("-m", "gpt2_train", *self.command, "--config", str(config), *flags))
        job = start_processes("gpt2", sys.executable, words, environments, DefaultLogsSpecs(log_dir=str(folder)))
        for number in STOP_SIGNALS:
            signal.signal(number, self._pass_on)
        assert isinstance(job, SubprocessContext)
        self._processes = {rank: started.proc for rank, started in job.subprocess_handlers.items()}
        return job

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def _codes(self) -> dict[int, int]:
        """The exit codes of the processes that have ended, negative for a signal."""
        return {rank: process.returncode for rank, process in self._processes.items() if process.poll() is not None}

    def _wait(self) -> None:
        """Wait until all have ended, or one has failed and the others had their time to report."""
        deadline = None
        while len(codes := self._codes()) < self.size:
            if deadline is None and any(codes.values()):
                # Processes that wait for one that has failed would wait forever.
                self.ended_first = codes
                if self.signal == 0 and any(code < 0 for code in codes.values()):
                    return  # It can't report, and what the others would report is a lost connection.
                has_stopped = self.signal and all(code in (0, 128 + self.signal) for code in codes.values())
                deadline = time.monotonic() + (STOP_SECONDS if has_stopped else GRACE_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
        if deadline is None:
            self.ended_first = codes

    def _outcome(self, folder: Path, job: PContext | None) -> int:
        codes, files = self._codes(), {} if job is None else job.error_files
        reports = {rank: read_report(Path(files[rank])) for rank, code in codes.items() if code}
        return self.judge(codes, {rank: report for rank, report in reports.items() if report}, folder)

    def judge(self, codes: dict[int, int], reports: dict[int, dict[str, Any]], folder: Path) -> int:
        """The exit code of the job whose processes ended with `codes` and left `reports`. Raises as `run` does."""
        failed = {rank: code for rank, code in codes.items() if code}
        if len(codes) == self.size and not failed:
            return 0
        # The first to fail names the cause; what others say of lost connections is only its echo.
        first = min(reports, key=lambda rank: (not reports[rank]["is_expected"], reports[rank]["time"]), default=None)
        is_expected = first is not None and reports[first]["is_expected"]
        if self.signal and not is_expected:
            if self.signal == signal.SIGINT and (reports or -signal.SIGINT in failed.values()):
                raise KeyboardInterrupt
            if any(code < 0 for code in failed.values()):
                print(f"gpt2: stopped by {signal.Signals(self.signal).name}.", file=sys.stderr)
            return 128 + self.signal
        if first is not None and self.debug:
            sys.stderr.write(reports[first]["traceback"])
        by_signal = [(rank, -code) for rank, code in self.ended_first.items() if code < 0]
        # A process that writes to one that was killed may end by SIGPIPE.
        killed = min(by_signal, key=lambda one: one[1] == signal.SIGPIPE, default=None)
        if killed is not None and (killed[1] == signal.SIGKILL or not is_expected):
            # A process that fails may abort on its way out, but it never kills itself.
            raise self._death(*killed, folder)
        if first is None:
            raise self._death(next(iter(failed)), -next(iter(failed.values())), folder)
        self._show_words(first, folder)
        raise (Gpt2UsageError if reports[first]["exit_code"] == 2 else Gpt2Error)(reports[first]["error"])

    def _death(self, rank: int, number: int, folder: Path) -> Gpt2Error:
        """The error of a process that ended without a report, by the signal `number`, or with the status `-number`."""
        self._show_words(rank, folder)
        how = f"was killed by {signal.Signals(number).name}" if number > 0 else f"ended with status {-number}"
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return Gpt2Error(f"process {rank} of {self.size} {how}{hint}: {self.resumes}.")

    def _show_words(self, rank: int, folder: Path) -> None:
        with contextlib.suppress(OSError):
            text = words_file(folder, rank).read_text(errors="replace")
            for line in errors_in(text):
                print(f"process {rank} of {self.size}: {line}", file=sys.stderr)


def errors_in(text: str) -> list[str]:
    """The lines in which libraries of a process say what went wrong, without stack traces; else the last ones."""
    lines = text.splitlines()
    return [line for line in lines if _ERROR_OF_A_LIBRARY.match(line)][-MOST_WORDS:] or lines[-MOST_WORDS:]


def read_report(path: Path) -> dict[str, Any]:
    """The report of a process on its error; empty where it could not write one."""
    try:
        found = json.loads(path.read_text())["gpt2"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(found)
