"""Slurm itself, of one node, this machine: munged, slurmctld and slurmd, started by hand with a folder of their own.

Without cgroups and accounting, which need more of a machine than tests have: so Slurm does not limit memory here.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
PATIENCE = 60
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def path_of(program: str) -> str | None:
    """Where a program is, also one of the administrator's."""
    return shutil.which(program, path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


def why_not() -> str:
    """Why Slurm can't be started here; empty if it can."""
    missing = [program for program in (*DAEMONS, "sbatch") if path_of(program) is None]
    return f"needs {', '.join(missing)}: Debian's packages are slurm-wlm and munge" if missing else ""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in opened]


@contextlib.contextmanager
def running() -> Iterator[Path]:
    """A cluster, as long as the block runs; gives the file to which $SLURM_CONF has to point."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)  # a short name: munged's socket lies there,
        folder.chmod(0o711)  # which all users must be able to reach
        host, user = socket.gethostname().partition(".")[0], getpass.getuser()
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(folder=folder, host=host, user=user, ports=free_ports(2)), encoding="ascii"
        )
        for part in ("state", "spool"):
            (folder / part).mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        munge = [f"--key-file={key}", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
        munge += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed", "--foreground"]
        environment = {**os.environ, "SLURM_CONF": str(configuration)}
        for program, arguments in (("munged", munge), ("slurmctld", ["-D", "-c"]), ("slurmd", ["-D"])):
            log = stack.enter_context((folder / f"{program}.out").open("wb"))
            command = [path_of(program), *arguments]
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            stack.callback(daemon.wait)
            stack.callback(daemon.kill)
        deadline = time.monotonic() + PATIENCE
        while b"idle" not in subprocess.run(["sinfo", "--noheader"], capture_output=True, env=environment).stdout:
            logs = [path.read_text(errors="replace")[-1000:] for path in folder.glob("*.out")]
            assert time.monotonic() < deadline, f"Slurm has not started: {logs}"
            time.sleep(0.1)
        yield configuration
