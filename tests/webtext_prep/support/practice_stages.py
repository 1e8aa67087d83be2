"""Stages that exist only for the tests of the runner; worker processes import them from here."""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import practice_storage  # noqa: F401 - worker processes need it

from command_kit import setting
from webtext_prep.documents.document import Document
from webtext_prep.running.stage import DocumentStage
from webtext_prep.running.tally import Tally


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
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(task.outputs[0]))
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
        try:
            gate = os.open(Path(self.gate) / "gate", os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENOENT
            return
        os.close(gate)
        (Path(self.gate) / f"reached-{os.getpid()}").touch()
        try:
            os.close(os.open(Path(self.gate) / "gate", os.O_RDONLY))  # returns when somebody opens the other end
        except FileNotFoundError:
            return


@dataclass(frozen=True)
class Whisper(Shout):
    """The same, by another name."""

    name: ClassVar[str] = "whisper"


@dataclass(frozen=True)
class ShoutVersion2(Shout):
    """The same stage in a later version of the program."""

    version: ClassVar[int] = 2
