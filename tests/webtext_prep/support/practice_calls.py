"""Tasks for the tests of the engines; worker processes import them from here."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtext_prep.errors import InputError, RetryableError
from webtext_prep.running.tasks import Task


def tasks_of(*values, **options) -> list[Task]:
    """A task for each value: whole numbers are in its options, and all are in its hints."""
    return [
        Task(f"task-{number}", options={"value": value if isinstance(value, int) else 0, **options},
             hints={"value": value})
        for number, value in enumerate(values)
    ]  # fmt: skip


def square(task, context):
    context.report(task.options["value"])
    return task.options["value"] ** 2


def nothing(task, context):
    return None


def process_id(task, context):
    return os.getpid()


def environment(task, context):
    return os.environ.get(task.hints["value"])


def report_until_heard(task, context):
    while not (Path(task.options["folder"]) / "heard").exists():
        context.report(task.options["value"])
        time.sleep(0.01)


def where(task, context):
    return str(context.scratch), context.slots


ERRORS = {
    "input": lambda: InputError("the file is bad."),
    "key": lambda: KeyError("bug"),
    "disk": lambda: OSError(28, "No space left"),
}


def fail(task, context):
    """Raise the error that the task names, if it names one."""
    if task.hints["value"] is not None:
        raise ERRORS[task.hints["value"]]()


def fail_or_wait(task, context):
    fail(task, context)
    threading.Event().wait()


def refuse_or_wait(task, context):
    """Refuse the task whose value is 1; the others never end."""
    if task.options["value"] == 1:
        raise InputError("the file is bad.")
    threading.Event().wait()


def times(task) -> int:
    """How often the task was tried before this time, by files in the folder of its options."""
    folder = Path(task.options["folder"])
    count = len(list(folder.glob(f"{task.name}-*")))
    (folder / f"{task.name}-{count}").touch()
    return count


def die_at_first(task, context):
    """Be killed, half-way, so many times; then do the work."""
    count = times(task)
    context.report(5)
    if count < task.options.get("deaths", 0):
        print("dying", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    context.report(10)
    return count


def be_busy_at_first(task, context):
    count = times(task)
    if count < task.options.get("failures", 0):
        raise RetryableError("the store is busy.")
    return count


class Unpicklable(Exception):
    """Its arguments do not make it again."""

    def __init__(self, one, two):
        super().__init__("just one")


def fail_unpicklably(task, context):
    raise Unpicklable(1, 2)


class Speechless(Exception):
    """Not even its message can be had."""

    def __str__(self):
        raise ValueError("no message")


def fail_speechlessly(task, context):
    raise Speechless


def end_the_process(task, context):
    raise SystemExit(3)


def give_what_cannot_travel(task, context):
    times(task)
    return threading.Lock()


def much(task, context):
    return "x" * task.options["value"]


def wait_and_name_the_node(task, context):
    """Wait at a gate, and say which node of a Ray cluster this is."""
    import ray
    from practice_stages import wait_at

    wait_at(Path(task.options["gate"]))
    return ray.get_runtime_context().get_node_id()


def hears_ctrl_c(task, context):
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def stand_still(task, context):
    """Say who it is, and no thread of it runs any more."""
    os.write(1, b"%d\n" % os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)


def die_at_rename(journal: Path, met: list[str], what: str, rename: Callable[[], None]) -> None:
    """Rename a file, and be killed: the first time before it, the second time behind it, then no more.

    `met` are the renames in the journal so far, which takes this one, too.
    """
    count = met.count(what)
    met.append(what)
    with journal.open("a") as file:
        file.write(f"{what}\n")
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename()
    if count == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class DyingAtRenames:
    """A call of a job whose process is killed at renames of each kind below a folder.

    Attributes:
        call: the stage's method.
        whole: the same as the job has wrapped it.
        journal: where renames are noted.
        folder: where files are renamed.
    """

    call: Any
    whole: Any
    journal: Path
    folder: Path

    def __call__(self, task, context):
        real = os.replace
        os.replace = lambda source, target: self.replace(real, self.journal, self.folder, source, target)
        try:
            return self.whole(task, context)
        finally:
            os.replace = real

    @staticmethod
    def replace(real, journal: Path, folder: Path, source, target) -> None:
        """`os.replace`, which the process may not survive."""
        if not Path(target).is_relative_to(folder):  # Ray's own
            real(source, target)
            return
        kind = re.sub("[0-9]+", "0", str(Path(target).relative_to(folder)))
        die_at_rename(journal, journal.read_text().splitlines(), kind, lambda: real(source, target))
