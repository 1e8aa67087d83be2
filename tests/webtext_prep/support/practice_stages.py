"""Stages that exist only for the tests of the runner; worker processes import them from here."""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from command_kit import setting
from webtext_prep.documents.document import Document
from webtext_prep.running.stage import DocumentStage
from webtext_prep.running.tasks import Tally
from webtext_prep.stages.index_tokens import IndexTokens
from webtext_prep.stages.tokenize import Tokenize


def wait_at(folder: Path) -> None:
    """Leave a file `reached-PID` in the folder and wait until the pipe `gate` there is opened or gone."""
    try:
        gate = os.open(folder / "gate", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        assert error.errno == errno.ENOENT
        return
    os.close(gate)
    (folder / f"reached-{os.getpid()}").touch()
    try:
        os.close(os.open(folder / "gate", os.O_RDONLY))  # returns when somebody opens the other end
    except FileNotFoundError:
        return


@dataclass(frozen=True)
class Shout(DocumentStage):
    """Texts in capitals. A document's metadata says what else happens at it, so that tests need no timers:

    drop: it is dropped for that reason. lose: it vanishes. fail: an internal error. wait: the process leaves a file
    `reached-PID` in the folder of --gate and waits until the pipe `gate` there is opened or gone. A file `full` in that
    folder simulates a full disk.
    """

    name: ClassVar[str] = "shout"
    order: ClassVar[int] = 1
    summary: ClassVar[str] = "documents -> documents in capitals"

    mark: str = setting("!", "what to end with")
    gate: str = setting("", "folder of the pipe to wait for", identity=False)

    def process_shard(self, task, context):
        if self.gate and (Path(self.gate) / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(task.writes.kept))
        return super().process_shard(task, context)

    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        for document in documents:
            if "drop" in document.metadata:
                tally.drop(document, document.metadata["drop"], detail=1)
                continue
            if "lose" in document.metadata:
                continue
            if "fail" in document.metadata:
                raise KeyError("a bug")
            if "wait" in document.metadata and self.gate:
                self._wait()
            document.text = document.text.upper() + self.mark
            yield document

    def _wait(self) -> None:
        wait_at(Path(self.gate))


@dataclass(frozen=True)
class Whisper(Shout):
    """The same, by another name."""

    name: ClassVar[str] = "whisper"


@dataclass(frozen=True)
class ShoutVersion2(Shout):
    """The same stage in a later version of the program."""

    version: ClassVar[int] = 2


@dataclass(frozen=True)
class ShoutByLibrary(Shout):
    """The same stage with the help of a library."""

    libraries = ("ftfy", "langdetect")


@dataclass(frozen=True)
class SmallTokenize(Tokenize):
    """Tokenizing in runs and parts of a few documents."""

    name: ClassVar[str] = "small-tokenize"
    run_bytes: ClassVar[int] = 1000
    part_bytes: ClassVar[int] = 1000


@dataclass(frozen=True)
class SmallIndexTokens(IndexTokens):
    """Indexing that waits at the gate in the third part. The parts that it sorts are noted in the file `sorted`."""

    name: ClassVar[str] = "small-index-tokens"

    gate: str = setting("", "folder of the pipe to wait for", identity=False)

    def sort_part(self, task, context):
        if self.gate:
            if task.name == "part-00002":
                wait_at(Path(self.gate))
            with (Path(self.gate) / "sorted").open("a") as file:
                file.write(f"{task.name}\n")
        return super().sort_part(task, context)
