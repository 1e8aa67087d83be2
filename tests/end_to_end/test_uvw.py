"""`./uvw` finds uv or installs it, whatever the machine has; small programs stand in for uv and for Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = """#!/bin/sh
[ "$1" = --version ] && echo "uv {version} (a machine)" && exit
echo "uv {version}"
for word; do echo "<$word>"; done
[ -z "$UV_COMPILE_BYTECODE" ] || echo "bytecode $UV_COMPILE_BYTECODE"
echo "cache ${{UV_CACHE_DIR:-its own}}"
"""
PYTHON = """#!/bin/sh
# {has}
case "$*" in
    *"-m pip --version") case "{has}" in *pip*) exit 0 ;; *) exit 1 ;; esac ;;
    *"import ensurepip, venv") case "{has}" in *venv*) exit 0 ;; *) exit 1 ;; esac ;;
    *version_info*) case "{has}" in *old*) exit 1 ;; *) exit 0 ;; esac ;;
    --version) echo "Python 3.6.15" ;;
    "-m pip install "*)
        case "{has}" in *broken*) echo "no network" >&2; exit 1 ;; esac
        while [ "$1" != --target ]; do shift; done
        mkdir -p "$2/bin" && cp "$0.uv" "$2/bin/uv" && echo "$3" > "$2/asked" ;;
    "-m venv "*)
        mkdir -p "$3/bin" && printf '#!/bin/sh\\ncp "%s.uv" "%s/bin/uv"\\n' "$0" "$3" > "$3/bin/python"
        chmod +x "$3/bin/python" ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """A checkout in a folder with a space in its name, and a PATH that holds next to nothing."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.path = folder / "my checkout", folder / "bin"
        self.checkout.mkdir()
        self.path.mkdir()
        shutil.copy(ROOT / "uvw", self.checkout)
        for tool in ("sh", "dirname", "mkdir", "mv", "rm", "cp", "chmod"):
            (self.path / tool).symlink_to(shutil.which(tool))
        self.environment = {"PATH": str(self.path), "HOME": str(folder / "home")}

    def with_uv(self, version: str) -> None:
        program(self.path / "uv", UV.format(version=version))

    def with_python(self, has: str, installs: str = "9.9.9") -> None:
        program(self.path / "python3", PYTHON.format(has=has))
        program(self.path / "python3.uv", UV.format(version=installs))

    def uvw(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.checkout / "uvw", *arguments],
            env=self.environment,
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.checkout.glob(".uv/*"))


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def pinned() -> str:
    (line,) = (line for line in (ROOT / "uvw").read_text().splitlines() if line.startswith("VERSION="))
    return line.split("=")[1].split()[0]


@pytest.mark.parametrize("version", ["0.9.0", "0.13.9", "0.100.1", "1.0.0"])
def test_the_uv_on_path_is_used_and_gets_the_arguments_as_they_are(machine, version):
    machine.with_uv(version)
    done = machine.uvw("run", "a b", "", "$HOME")
    assert done.stdout.splitlines() == [f"uv {version}", "<run>", "<a b>", "<>", "<$HOME>", "cache its own"]
    assert (done.returncode, done.stderr, machine.left) == (0, "", [])


@pytest.mark.parametrize("version", [None, "0.8.22", "0.0.1", "", "x.y"])
@pytest.mark.parametrize("has", ["pip", "pip venv", "venv"])
def test_without_a_uv_that_will_do_the_pinned_one_is_installed_once(machine, version, has):
    """On a machine whose Python is externally managed the first command of the README failed."""
    if version is not None:
        machine.with_uv(version)
    machine.with_python(has)
    first = machine.uvw("sync")
    assert (first.returncode, first.stdout.splitlines()[:2]) == (0, ["uv 9.9.9", "<sync>"])
    assert first.stderr == f"uvw: installing uv {pinned()} into {machine.checkout}/.uv\n"
    assert (machine.checkout / ".uv" / pinned() / "asked").exists() or has == "venv"
    assert machine.left == [pinned()]
    (machine.path / "python3").unlink()
    again = machine.uvw("sync")
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")


def test_pip_is_asked_for_the_pinned_version_in_the_folder_of_the_checkout(machine):
    machine.with_python("pip")
    machine.uvw("sync")
    assert (machine.checkout / ".uv" / pinned() / "asked").read_text() == f"uv=={pinned()}\n"


@pytest.mark.parametrize(
    ("has", "sentence"),
    [
        (None, "uvw: error: no python3: install Python 3.11 to 3.13, or uv."),
        ("old pip", "uvw: error: Python 3.6.15 is too old to install uv: install Python 3.11 to 3.13, or uv."),
        ("", "uvw: error: python3 has neither pip nor venv, one of which installs uv: install one (Debian, Ubuntu: "
         "apt install python3-venv; Fedora: dnf install python3-pip), or uv itself."),
        ("pip broken", f"uvw: error: could not install uv {pinned()}: see above, or install uv in any other way."),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_sentence(machine, has, sentence):
    if has is not None:
        machine.with_python(has)
    done = machine.uvw("run")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == sentence
    assert machine.left == []


def test_a_uv_that_does_not_run_here_is_said_and_tried_again(machine):
    machine.with_python("pip", installs="")
    assert "just installed, does not run on this system" in machine.uvw("run").stderr
    machine.with_python("pip")
    assert machine.uvw("run").returncode == 0
    assert machine.left == [pinned()]


@pytest.mark.parametrize("home", [None, "", "/dev/null/home"])
def test_without_a_home_to_write_to_the_cache_is_in_the_checkout(machine, home):
    machine.with_uv("0.13.9")
    machine.environment.pop("HOME")
    if home is not None:
        machine.environment["HOME"] = home
    assert machine.uvw("run").stdout.splitlines()[-1] == f"cache {machine.checkout}/.uv/cache"
    machine.environment["UV_CACHE_DIR"] = "/somewhere"
    assert machine.uvw("run").stdout.splitlines()[-1] == "cache /somewhere"


@pytest.mark.parametrize(
    ("words", "has_packages", "environment", "compiles"),
    [
        (["run", "x"], False, {"PYTHONDONTWRITEBYTECODE": "1"}, True),
        (["run", "x"], True, {"PYTHONDONTWRITEBYTECODE": "1"}, False),
        (["sync"], True, {"PYTHONDONTWRITEBYTECODE": "1"}, True),
        (["sync"], False, {"PYTHONDONTWRITEBYTECODE": ""}, False),
        (["sync"], False, {}, False),
        (["sync"], False, {"PYTHONDONTWRITEBYTECODE": "1", "UV_COMPILE_BYTECODE": "0"}, False),
        (["run"], True, {"PYTHONDONTWRITEBYTECODE": "1", "UV_PROJECT_ENVIRONMENT": "nowhere"}, True),
    ],
)
def test_where_python_may_not_write_bytecode_installing_does(machine, words, has_packages, environment, compiles):
    """Each process compiled numba and SciPy again."""
    machine.with_uv("0.13.9")
    machine.environment |= environment
    if has_packages:
        (machine.checkout / ".venv").mkdir()
    assert ("bytecode 1" in machine.uvw(*words).stdout.splitlines()) == compiles


def test_the_script_is_plain_posix_and_git_ignores_what_it_installs():
    text = (ROOT / "uvw").read_text()
    assert text.startswith("#!/bin/sh\n")
    assert not [word for word in ("[[", "local ", "function ", "<<<", "pipefail", "==\n") if word in text]
    assert ".uv/" in (ROOT / ".gitignore").read_text().split()
    assert os.access(ROOT / "uvw", os.X_OK)
