"""A cluster of `slurm_stand_in.py`: a folder with commands of Slurm's names, the jobs that they run, and its end."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from processes import is_alive

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol")


class Cluster:
    """The folder of a stand-in for Slurm.

    Args:
        folder: a new folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in COMMANDS:
            command = folder / "bin" / name
            stand_in = Path(__file__).with_name("slurm_stand_in.py").read_text(encoding="utf-8")
            command.write_text(f"#!{sys.executable} -IS\n{stand_in}", encoding="utf-8")
            command.chmod(0o755)
        self.set()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that is to find its commands."""
        return {"STAND_IN": str(self.folder), "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def set(self, **settings: object) -> None:
        """Replace all settings, also while it runs; see the stand-in."""
        unfinished = self.folder / ".settings.json"
        unfinished.write_text(json.dumps(settings))
        unfinished.replace(self.folder / "settings.json")

    def calls(self, command: str) -> int:
        """How often one of the commands was called."""
        return len(list((self.folder / "called").glob(f"{command}-*")))

    def states(self) -> list[str]:
        """The states of all jobs."""
        return [path.read_text() for path in sorted(self.folder.glob("arrays/*/state-*"))]

    def jobs(self) -> list[int]:
        """The process group of each job that runs."""
        found = self.folder.glob("arrays/*/pid-*")
        return [pid for path in found if is_alive(pid := int(path.read_text()))]

    def processes(self) -> list[int]:
        """All that it has started and that still runs."""
        return [pid for path in self.folder.glob("arrays/*/pid*") if is_alive(pid := int(path.read_text()))]

    def stop(self) -> None:
        """Kill all of it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
