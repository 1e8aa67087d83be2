"""A run on several machines, as far as one machine can play them: torchrun's agents over the loopback address."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpt2_train.conftest import command, losses
from torch.distributed.run import get_args_parser

from gpt2_train.checkpoint.info import read_info
from gpt2_train.cli import main

ROOT = Path(__file__).resolve().parents[2]
RUN = ("--steps", 4, "--dropout", 0, "--save-every", 2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.exhaustive
def test_two_torchruns_train_one_model(tmp_path: Path, corpus: str) -> None:
    """One agent for each machine, as the guide and the Slurm script start them; one copy of the state on each."""
    port = free_port()
    nodes = []
    for node in range(2):
        words = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
            "--rdzv-backend", "c10d", "--rdzv-id", "test", "--rdzv-endpoint", f"127.0.0.1:{port}",
            "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", "127.0.0.1", "-m", "gpt2_train",
            *command(tmp_path / "run", *RUN, "--data-parallel-replicate", 2, data=corpus)[3:],
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        nodes.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment))
    errors = [node.communicate(timeout=400)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(error[-3000:] for error in errors)
    assert "2 processes (cpu, fp32): data parallel 2 with 2 copies" in errors[0] + errors[1]
    assert main(command(tmp_path / "one", *RUN, data=corpus)[3:]) == 0
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
    assert read_info(tmp_path / "run").step == 4


def test_the_slurm_script_is_a_shell_script_with_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    script = ROOT / "docs" / "slurm" / "train.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if "gpt2_train train" in line)
    launcher, _, rest = line.partition("gpt2_train train")
    words = shlex.split(rest)
    stops = int(re.findall(r"#SBATCH --signal=TERM@(\d+)", text)[0])
    agent = shlex.split(launcher.partition(" torchrun ")[2].replace("$SLURM_NNODES", "2"))
    given = get_args_parser().parse_args([*agent, "gpt2_train"])
    assert 30 < given.shutdown_timeout < stops, "torchrun kills what has not saved by then"
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    assert {word for word in words if word.startswith("--")} <= known
