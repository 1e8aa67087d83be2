"""`gpt2 doctor`: what it finds, and when it gives advice."""

import importlib.machinery
import json
import re
import sys
import types
from pathlib import Path

import pytest
import torch

from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.distributed.parallelize import is_compiled
from gpt2_train.training import machine_checks


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_prints_a_line_for_each_thing(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all(line.startswith(("ok  ", "!   ")) for line in lines)
    assert "torch" in lines[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU that torch sees")
@pytest.mark.parametrize(("cuda", "advice"), [(None, "build without CUDA"), ("13.0", "update the driver")])
def test_a_gpu_that_torch_does_not_see_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda, advice):
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert advice in machine_checks._device(torch.device("cpu"), cuda).advice


@pytest.mark.parametrize(
    ("kind", "variable", "value", "sentence"),
    [
        ("cpu", "CXX", None, "there is no C++ compiler (g++, or what CXX names)"),
        ("cpu", "CXX", "/nonexistent/g++", "CXX is '/nonexistent/g++', which is no program here"),
        ("cpu", "CXX", "", "CXX is '', which is no program here"),
        ("cuda", "CC", None, "there is no C compiler (gcc, clang, or what CC names)"),
        ("cuda", "CC", "/nonexistent/gcc", "CC is '/nonexistent/gcc', which is no program here"),
    ],
)
def test_compiling_without_a_compiler_is_said(monkeypatch, kind, variable, value, sentence):
    """By the doctor, by a run that asks for it; one that does not is not compiled. It ended the run at its first step
    where the variable named no file."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    sys.modules["triton"].__spec__ = importlib.machinery.ModuleSpec("triton", None)
    device = torch.device(kind)
    check = machine_checks._compiler(device)
    assert sentence in (check.advice if kind == "cuda" else check.found)
    assert is_compiled(None, device) is False
    with pytest.raises(Gpt2UsageError, match=re.escape(f"--compile: {sentence}; install it, or give --no-compile.")):
        is_compiled(True, device)
