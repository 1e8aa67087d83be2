"""An engine that runs each task on a "node" of its own, where there is nothing but what the task declares.

Calls and tasks are pickled, options and hints are JSON, the temporary folder is a new one for each task, and while a
task runs, the job's folders of this machine and in storage have another name: a task that reads what it has not
declared finds nothing, and what it writes without declaring it is gone afterwards.
"""

import contextlib
import dataclasses
import json
import pickle
import tempfile
from pathlib import Path

from webtext_prep.running.engines.base import Engine
from webtext_prep.running.staging import OnLocalCopies
from webtext_prep.running.tasks import Context


class Strict(Engine):
    """See the top of the module."""

    name = "strict"

    def run(self, call, tasks, *, scratch, on_progress):
        """See `Engine.run`."""
        assert isinstance(call, OnLocalCopies), "give --shared-scratch"
        for position, task in enumerate(tasks):
            options, hints = json.loads(json.dumps([task.options, task.hints]))
            task = dataclasses.replace(task, options=options, hints=hints)
            with tempfile.TemporaryDirectory() as node:
                hidden = Hidden(call.call, (scratch.parent, Path(str(call.place))))
                sent, its_task = pickle.loads(pickle.dumps((dataclasses.replace(call, call=hidden), task)))
                before, tempfile.tempdir = tempfile.tempdir, node
                try:
                    result = sent(its_task, Context(Path(node) / "scratch", 1, lambda units: None))
                finally:
                    tempfile.tempdir = before
            yield position, json.loads(json.dumps(result))


@dataclasses.dataclass(frozen=True)
class Hidden:
    """A call while which some folders have another name."""

    call: object
    folders: tuple[Path, ...]

    def __call__(self, task, context):
        for file in (*task.reads.all(), *task.unkeyed.all(), *task.writes.all(), task.folder):
            assert not any(str(file).startswith(f"{folder}/") for folder in self.folders), f"{file} is not brought here"
        with contextlib.ExitStack() as stack:
            for folder in self.folders:
                other = folder.with_name(f"{folder.name}.hidden")
                folder.rename(other)
                stack.callback(other.rename, folder)
            return self.call(task, context)
