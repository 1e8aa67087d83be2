"""A stand-in for Slurm: sbatch, squeue, sacct, scancel and scontrol, by the name under which this file is called.

A cluster is a folder, $SLURM_STAND_IN in the environment of the commands under the name STAND_IN. Each array has a
process of its own that runs its jobs, as many at once as `settings.json` says. Settings: `nodes` (jobs at once, of an
array), `most_jobs` (MaxArraySize), `killed_as` (the state of a job that died by SIGKILL), `forgets` (squeue knows no
job that has ended), `accounts` (sacct does), `refuses` (what sbatch says instead), `silent` (squeue does not answer),
`sees` (where logs would have to be for nodes to see them). A file `hold` keeps jobs from being started.

The folder `called` has a file for each call of a command, with its arguments.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["STAND_IN"])
SETTINGS = {
    "nodes": 2, "most_jobs": 1001, "killed_as": "OUT_OF_MEMORY", "forgets": False, "accounts": False, "refuses": "",
    "silent": False, "sees": "", **json.loads((HOME / "settings.json").read_text()),
}  # fmt: skip
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "PREEMPTED")


def option(name, default=""):
    given = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return given[-1] if given else default


def write(path, text):
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)


def note_call(command):
    (HOME / "called").mkdir(exist_ok=True)
    number = 0
    while True:
        try:
            with (HOME / "called" / f"{command}-{number}").open("x") as file:
                file.write("\n".join(sys.argv[1:]))
                return
        except FileExistsError:
            number += 1


def fail(sentence):
    print(f"{Path(sys.argv[0]).name}: error: {sentence}", file=sys.stderr)
    sys.exit(1)


def sbatch():
    if SETTINGS["refuses"]:
        fail(SETTINGS["refuses"])
    number = 1
    while True:
        try:
            folder = HOME / "arrays" / str(number)
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
    found = re.fullmatch(r"0-(\d+)(?:%(\d+))?", option("array"))
    jobs = range(int(found[1]) + 1)
    if len(jobs) > SETTINGS["most_jobs"]:
        fail("Batch job submission failed: Invalid job array specification")
    (folder / "script").write_text(sys.stdin.read())
    for job in jobs:
        write(folder / f"state-{job}", "PENDING")
    write(folder / "name", option("job-name"))
    nodes = min(SETTINGS["nodes"], int(found[2] or SETTINGS["nodes"]))
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        write(folder / "pid", str(os.getpid()))
        run(folder, jobs, nodes)
        os._exit(0)
    print(f"{number};cluster")


def run(folder, jobs, nodes):
    """The life of an array's own process."""
    waiting, running = list(jobs), {}
    while waiting or running:
        while waiting and len(running) < nodes and not (HOME / "hold").exists():
            job = waiting.pop(0)
            if (folder / f"state-{job}").read_text() == "PENDING":
                process = start(folder, job)
                if process is not None:
                    running[process.pid] = job, process
        for pid, (job, process) in list(running.items()):
            code = process.poll()
            if code is not None:
                del running[pid]
                if (folder / f"state-{job}").read_text() == "RUNNING":
                    died = SETTINGS["killed_as"] if code == -signal.SIGKILL else "FAILED"
                    write(folder / f"state-{job}", "COMPLETED" if code == 0 else died)
        time.sleep(0.02)


def start(folder, job):
    log = re.sub("%(.)", lambda found: {"a": str(job), "%": "%"}[found[1]], option("output"))
    try:
        if not log.startswith(SETTINGS["sees"]):
            raise FileNotFoundError
        output = Path(log).open("ab")  # noqa: SIM115 - the job's
    except OSError:
        write(folder / f"state-{job}", "FAILED")
        return None
    given = {"SLURM_ARRAY_TASK_ID": str(job), "SLURM_ARRAY_JOB_ID": folder.name}
    given["SLURM_CPUS_ON_NODE"] = option("cpus-per-task", "1")
    process = subprocess.Popen(
        ["/bin/sh", folder / "script"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        cwd=option("chdir", "."), env={**os.environ, **given}, start_new_session=True,
    )  # fmt: skip
    write(folder / f"pid-{job}", str(process.pid))
    write(folder / f"state-{job}", "RUNNING")
    return process


def arrays():
    folder = HOME / "arrays"
    return (
        sorted((entry for entry in folder.iterdir() if (entry / "name").exists()), key=lambda entry: int(entry.name))
        if folder.exists()
        else []
    )


def states(array):
    found = {int(path.name.partition("-")[2]): path.read_text() for path in array.glob("state-*")}
    return dict(sorted(found.items()))


def squeue():
    if SETTINGS["silent"]:
        fail("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    names = option("name").split(",")
    for array in arrays():
        name = (array / "name").read_text()
        for job, state in states(array).items():
            if name in names and not (SETTINGS["forgets"] and state in ENDED):
                print(f"{name}|{job}|{array.name}|{state}|{'Resources' if state == 'PENDING' else 'None'}")


def sacct():
    if not SETTINGS["accounts"]:
        fail("Slurm accounting storage is disabled")
    for array in arrays():
        if array.name in option("jobs").split(","):
            for job, state in states(array).items():
                print(f"{array.name}_{job}|{state}{' by 0' if state == 'CANCELLED' else ''}")


def scancel():
    for word in sys.argv[1:]:
        if not word.startswith("-"):
            number, _, job = word.partition("_")
            array = HOME / "arrays" / number
            for one in [int(job)] if job else states(array):
                state = (array / f"state-{one}").read_text()
                if state not in ENDED:
                    write(array / f"state-{one}", "CANCELLED")
                    if state == "RUNNING":
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(int((array / f"pid-{one}").read_text()), signal.SIGTERM)


def scontrol():
    print(f"MaxArraySize            = {SETTINGS['most_jobs']}\nMaxDBDMsgs = 1")


if __name__ == "__main__":
    note_call(Path(sys.argv[0]).name)
    {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel, "scontrol": scontrol}[
        Path(sys.argv[0]).name
    ]()
