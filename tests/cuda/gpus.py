"""GPUs that are not there: real torch for CUDA over the null device, which computes nothing and counts everything.

The library is built from null_device/ by a C compiler with the headers that torch's wheels bring. What runs on it is
the ordinary program: torch's allocator, autograd, FSDP2, NCCL's process groups, graphs, Inductor and Triton, which
compile for the GPU that is pretended. Losses are 0 and rates mean nothing; launches, copies, waits, contexts, memory
and messages are as on a real GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch
from tests.gpt2_train import forks

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "null_device"
LIBRARY, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
COMPILER = shutil.which("cc")


def headers() -> Path | None:
    """The folder of CUDA's headers among the installed packages, or None."""
    found = importlib.util.find_spec("nvidia")
    places = [Path(place) / "cu13" / "include" for place in (found.submodule_search_locations or [])] if found else []
    return next((place for place in places if (place / "cuda_runtime_api.h").is_file()), None)


def missing() -> str:
    """What the null device needs and is not there, or nothing."""
    if sys.platform != "linux" or torch.version.cuda is None or headers() is None:
        return "needs torch for CUDA on Linux, with the headers among its packages"
    return "" if COMPILER else "needs a C compiler"


def library() -> Path:
    """The folder with the library; it is built once for its sources. Raises CalledProcessError."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"null-cuda-{os.getuid()}-{digest}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            flags = ["-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{SOURCES}", f"-I{headers()}"]
            files = [str(source) for source in sources if source.suffix == ".c"]
            words = [str(COMPILER), *flags, "-o", LIBRARY, *files, "-ldl", "-lpthread", f"-Wl,-soname,{LIBRARY}"]
            subprocess.run(words, cwd=unfinished, check=True)
            (Path(unfinished) / NVML).symlink_to(LIBRARY)
            with contextlib.suppress(OSError):  # another process was faster
                Path(unfinished).rename(folder)
                Path(unfinished).mkdir()
    return folder


@dataclasses.dataclass(frozen=True)
class Gpus:
    """The GPUs of a machine.

    Attributes:
        number: how many there are.
        memory: GiB of each.
        capability: compute capability, as 90 for 9.0.
        name: as the driver tells it.
        stuck: after that many messages of NCCL a GPU ends nothing more, as when another process has died.
    """

    number: int = 1
    memory: float = 79
    capability: int = 90
    name: str = "NVIDIA H100 80GB HBM3"
    stuck: int | None = None

    def environment(self) -> dict[str, str]:
        """What a process has to be started with to see them."""
        folder = library()
        found = {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])),
            "LD_PRELOAD": str(folder / LIBRARY),
            "NULL_CUDA_GPUS": str(self.number),
            "NULL_CUDA_MEMORY": str(int(self.memory * 2**30)),
            "NULL_CUDA_CAPABILITY": str(self.capability),
            "NULL_CUDA_NAME": self.name,
            # A process that has asked the runtime for its GPUs can't be forked; NVML says the same.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }
        return found if self.stuck is None else found | {"NULL_CUDA_STUCK": str(self.stuck)}


@dataclasses.dataclass(frozen=True)
class Asked:
    """What one process asked of CUDA.

    Attributes:
        contexts: GPU -> the call and thread that needed a context there first.
        peak_bytes: the most memory that was held at once, of each GPU.
        notes: captures of graphs, calls that CUDA would have refused.
        counts: `KIND NAME` -> calls, their bytes or operations, and those of the largest.
    """

    process: int
    contexts: dict[str, str]
    peak_bytes: list[int]
    notes: list[str]
    counts: dict[str, tuple[int, int, int]]

    def of(self, kind: str) -> dict[str, tuple[int, int, int]]:
        """The counts of one kind (launch, product, copy, wait, query, memory, nccl, captured, module) by name."""
        return {name.removeprefix(f"{kind} "): row for name, row in self.counts.items() if name.startswith(f"{kind} ")}

    def calls(self, kind: str) -> int:
        """How many calls of a kind there were."""
        return sum(row[0] for row in self.of(kind).values())


@dataclasses.dataclass(frozen=True)
class Done:
    """A program that has ended.

    Attributes:
        code: its exit status.
        output, errors: what it wrote.
        asked: of each process that used CUDA, by number.
    """

    code: int
    output: str
    errors: str
    asked: list[Asked]


class Running:
    """A program on GPUs that are not there.

    Args:
        words: a command line that begins with this Python; then `-m`, `-c` or a script.
        gpus: what it finds.
        folder: an empty folder, in which its processes report.
        is_fork: a fork of a server that has imported torch, which saves seconds; False for a program as users start it.
        environment: more variables.
    """

    def __init__(
        self, words: Sequence[object], gpus: Gpus, folder: Path, *, is_fork: bool = True, **environment: str
    ) -> None:
        self._report = folder / "asked"
        own = gpus.environment() | {"NULL_CUDA_REPORT": str(self._report)} | environment
        with mock.patch.dict(os.environ, own):
            self.started: forks.Started | subprocess.Popen[str]
            if is_fork:
                self.started = forks.Started(words)
            else:
                texts = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                self.started = subprocess.Popen([*map(str, words)], **texts)  # type: ignore[call-overload]

    def end(self) -> Done:
        """Wait until it has ended."""
        output, errors = self.started.communicate()
        reports = [json.loads(path.read_bytes()) for path in sorted(self._report.parent.glob(f"{self._report.name}.*"))]
        asked = [Asked(**report) for report in reports if report["contexts"]]
        return Done(self.started.returncode or 0, output, errors, asked)


def faults(done: Done) -> list[str]:
    """What no run may do: contexts on another GPU than the process's own, or what CUDA refuses."""
    found, owners = [], []
    for asked in done.asked:
        # NCCL's watchdog may need one more, in a process that it is about to end.
        made = {gpu: by for gpu, by in asked.contexts.items() if "thread pt_nccl" not in by}
        if len(made) > 1:
            found.append(f"process {asked.process} needs contexts on {made}")
        if asked.calls("launch"):
            owners += made
        found += [note for note in asked.notes if "not permitted" in note or "registered already" in note]
    if len(owners) != len(set(owners)):
        found.append(f"several processes compute on one GPU: {owners}")
    return found
