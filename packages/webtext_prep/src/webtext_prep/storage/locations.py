"""Where a file or folder is: a local path, or a URL that names things as a path does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias


@dataclass(frozen=True, order=True)
class Url:
    """A file or folder at a URL, with the names and parents of `pathlib.PurePath`.

    Attributes:
        scheme: what stands before `://`: a protocol, or several of fsspec's (`simplecache::sftp`).
        path: what stands after it: for an object its bucket and key.
    """

    scheme: str
    path: PurePosixPath

    @classmethod
    def parse(cls, text: str) -> Url:
        """The URL that `text` is."""
        scheme, _, path = text.partition("://")
        return cls(scheme.lower(), PurePosixPath(path))

    @property
    def protocol(self) -> str:
        """The first protocol of the scheme, by which a store is chosen."""
        return self.scheme.partition("::")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket, or what stands for it, and the names below it."""
        return self.path.parts

    @property
    def name(self) -> str:
        """The last part of the path: the name of a file or folder."""
        return self.path.name

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot on."""
        return self.path.suffix

    @property
    def parent(self) -> Url:
        """The folder that it lies in; of a bucket, the bucket."""
        return self if len(self.parts) < 2 else Url(self.scheme, self.path.parent)

    @property
    def parents(self) -> tuple[Url, ...]:
        """The folder that it lies in, its parent, and so on."""
        return () if self.parent == self else (self.parent, *self.parent.parents)

    def with_name(self, name: str) -> Url:
        """A neighbour."""
        return Url(self.scheme, self.path.with_name(name))

    def with_suffix(self, suffix: str) -> Url:
        """The neighbour that differs in the suffix."""
        return Url(self.scheme, self.path.with_suffix(suffix))

    def __truediv__(self, name: str) -> Url:
        return Url(self.scheme, self.path / name)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path if self.parts else ''}"


Location: TypeAlias = Path | Url
"""A file or folder: a local path, or a URL."""
