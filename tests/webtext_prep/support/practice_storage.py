"""A remote file system for tests that lies in a folder of this machine, so that other processes see it, too.

It is reached as `practice:///folder`, through fsspec alone: whatever takes its files for files of this machine fails.
"""

import fsspec
from fsspec.implementations.local import LocalFileSystem
from upath import UPath
from upath.registry import register_implementation


class PracticeFileSystem(LocalFileSystem):
    protocol = "practice"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("practice://"))


class PracticePath(UPath):
    """A location in it, which other processes can make again."""


fsspec.register_implementation("practice", PracticeFileSystem, clobber=True)
register_implementation("practice", PracticePath, clobber=True)
