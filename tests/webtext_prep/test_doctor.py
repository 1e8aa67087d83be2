"""`webtext doctor`: what it finds, and when it gives advice."""

import json
import os
import py_compile
import resource
import socket
import sys
import types
from pathlib import Path

import pytest

from command_kit import machine as shared
from command_kit.machine import Machine
from webtext_prep import compiled
from webtext_prep.cli import main
from webtext_prep.commands.doctor import PROXIES, _open_files


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def found(capsys: pytest.CaptureFixture[str], host: str) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--host", host, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def listening() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_machine_that_has_everything_gets_no_advice(capsys, listening):
    checks = found(capsys, listening)
    assert [
        name for name, check in checks.items() if check["advice"] and name not in ("bytecode", "disk", "memory")
    ] == []
    assert checks["network"]["found"].startswith("127.0.0.1 answers after ")
    assert "trafilatura" in checks["extractors"]["found"]


def test_it_prints_a_line_for_each_thing(capsys, listening):
    assert main(["doctor", "--host", listening]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert all(line.startswith(("ok  ", "!   ")) for line in lines)


def test_without_a_network_it_says_which_stage_needs_one(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check = found(capsys, f"127.0.0.1:{port}")["network"]
    assert check["found"].startswith("127.0.0.1 can't be reached (")
    assert "`download` needs it" in check["advice"]


def test_a_proxy_is_named(capsys, listening, monkeypatch):
    """The download connects to hosts itself; behind a proxy it would find none."""
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert "https_proxy is set" in found(capsys, listening)["network"]["advice"]


@pytest.mark.parametrize(("limits", "advice"), [((256, 4096), ""), ((256, 256), "lower its --concurrency")])
def test_open_files_are_too_few_where_a_stage_may_not_raise_them(monkeypatch, limits, advice):
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    check = _open_files()
    assert advice in check.advice and bool(check.advice) == bool(advice)


def test_machine_code_that_can_be_kept_nowhere_is_named(capsys, listening, monkeypatch):
    monkeypatch.setattr(compiled, "kept_in", lambda: None)
    assert "each run compiles again" in found(capsys, listening)["machine code"]["advice"]


def test_little_memory_and_disk_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: types.SimpleNamespace(available=1 << 20))
    check = shared.memory_check(Machine(tmp_path), shared.GIB, "the quickstart")
    assert (check.found, check.advice) == ("0.0 GiB free", "the quickstart takes 1.0 GiB")
    assert "work on a larger disk" in shared.disk_check(Machine(), Path(tmp_path), 1 << 80, "all of it").advice


def test_packages_that_every_process_compiles_are_named(tmp_path, monkeypatch):
    """As in many images of containers."""
    (tmp_path / "a_package_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    check = shared.bytecode_check("a_package_of_mine")
    assert check.found == "none of the packages, and PYTHONDONTWRITEBYTECODE is set"
    assert "UV_COMPILE_BYTECODE=1" in check.advice
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not shared.bytecode_check("a_package_of_mine").advice
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert f"{tmp_path} can't be written" in shared.bytecode_check("a_package_of_mine").found
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    py_compile.compile(str(tmp_path / "a_package_of_mine.py"))
    assert not shared.bytecode_check("a_package_of_mine").advice


def test_a_distribution_that_is_missing_is_named_with_its_use():
    check = shared.packages_check("extras", {"pytest": "tests", "no-such-thing": "magic"}, how="install it")
    assert check.found.startswith("pytest ")
    assert check.found.endswith("; not installed: no-such-thing for magic (install it)")
    assert not check.advice


@pytest.mark.parametrize("host", ["example.org", ":443", "example.org:", "example.org:x", "example.org:70000"])
def test_a_host_without_a_port_is_refused(capsys, host):
    assert main(["doctor", "--host", host]) == 2
    assert "give one such as example.org:443" in capsys.readouterr().err
