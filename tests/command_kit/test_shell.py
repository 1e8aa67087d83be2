"""`--version`, and completion by the scripts that the two commands print."""

import argparse
import importlib.metadata
import platform
import shutil
import subprocess
import sys

import pytest

from command_kit import add_shell_flags
from command_kit.parsing import SHELLS, completion, version_line

MODULES = {"webtext": ("webtext_prep", "webtext-gpt2-prep"), "gpt2": ("gpt2_train", "webtext-gpt2-train")}


def printed(command: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", MODULES[command][0], *flags], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("command", MODULES)
def test_the_version_is_one_line(command):
    version = importlib.metadata.version(MODULES[command][1])
    shown = printed(command, "--version")
    assert shown.startswith(f"{command} {version} (Python {platform.python_version()}, ")
    assert shown.count("\n") == 1


def test_what_is_not_installed_has_no_version():
    assert version_line("x", "webtext-gpt2-kit", ["absent", "pytest"]).count(",") == 1


def test_a_program_that_is_not_installed_says_its_versions() -> None:
    """`gpt2 doctor` failed with an internal error where the sources are on the path and nothing is installed."""
    assert version_line("x", "absent").startswith("x not installed (Python ")


def completed(script: str, program: str, *words: str) -> list[str]:
    """What bash offers after `program` and `words`, the last of which is being typed."""
    typed = " ".join(f"'{word}'" for word in (program, *words))
    asked = (
        f"{script}\nCOMP_WORDS=({typed})\nCOMP_CWORD={len(words)}\n"
        f"found=$(complete -p {program})\nfound=${{found##*-F }}\n${{found%% *}}\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, check=False)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_choices():
    webtext, gpt2 = (printed(command, "--print-completion", "bash") for command in MODULES)
    assert completed(webtext, "webtext", "cl") == ["clean"]
    assert "--min-tokens" in completed(webtext, "webtext", "clean", "--min")
    assert completed(gpt2, "gpt2", "trai") == ["train"]
    assert "--learning-rate" not in completed(gpt2, "gpt2", "train", "--l")
    assert "--lr" in completed(gpt2, "gpt2", "train", "--l")
    assert "345M" in completed(gpt2, "gpt2", "train", "--model", "3")
    # Sets to which plugins may add.
    assert completed(webtext, "webtext", "clean", "--engine", "ra") == ["ray"]
    assert completed(webtext, "webtext", "clean", "--language-detector", "lang") == ["langdetect"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_that_names_each_flag(shell):
    parser = argparse.ArgumentParser(prog="bake")
    add_shell_flags(parser, "webtext-gpt2-kit")
    child = parser.add_subparsers().add_parser("bread", help="bake bread")
    child.add_argument("--minutes", metavar="N", help="how long, 100%% sure")
    child.add_argument("--recipe", metavar="FILE.toml", help="it's a file")
    script = completion(parser, shell)
    assert all(word in script for word in ("bake", "bread", "minutes", "recipe"))
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, check=False).returncode == 0


def test_a_reader_that_goes_away_is_not_an_error():
    """`webtext --print-completion bash | head` ended in a traceback."""
    command = [sys.executable, "-m", "webtext_prep", "--print-completion", "bash"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
