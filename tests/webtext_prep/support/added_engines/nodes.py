"""An engine whose tasks run on other machines, as far as they can see, one after the other in this process."""

import tempfile
from pathlib import Path

from webtext_prep.running.engines.local import LocalEngine


class Nodes(LocalEngine):
    """Each task is on a node of its own, that is, has a temporary folder of its own."""

    name = "nodes"
    is_here = False

    def run(self, call, tasks, **options):
        """See `Engine.run`."""
        options |= {"on_progress": lambda position, units: None}
        for position, task in enumerate(tasks):
            with tempfile.TemporaryDirectory() as node:
                before, tempfile.tempdir = tempfile.tempdir, node
                try:
                    ((_, result),) = self._run_here(call, [task], options["scratch"], options["on_progress"])
                finally:
                    tempfile.tempdir = before
                assert not list(Path(node).rglob("*.sqlite")), "a journal is left behind"
            yield position, result
