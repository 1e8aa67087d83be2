"""A remote file system for tests that lies in a folder of this machine, so that other processes see it, too.

It is reached as `practice:///folder`, through fsspec alone: whatever takes its files for files of this machine fails.
Other processes find it by the entry point next to this file.
"""

import fsspec
from fsspec.implementations.local import LocalFileSystem


class PracticeFileSystem(LocalFileSystem):
    protocol = "practice"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("practice://"))


fsspec.register_implementation("practice", PracticeFileSystem, clobber=True)
