"""Machine code is made once, by one process, and kept by numba; a file with compiled functions stands for itself."""

import ast
import fcntl
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba import types

import webtext_prep
from webtext_prep.compiled import compiled, kept_in

PACKAGE = Path(webtext_prep.__file__).parent
MODULE = """
from numba import types
from webtext_prep.compiled import compiled, inner
@inner
def more(x):
    return x + {}
@compiled(types.int64(types.int64))
def outer(x):
    return more(x)
"""


@pytest.mark.exhaustive
def test_one_process_compiles_the_others_load_and_a_change_of_the_file_is_noticed(tmp_path):
    """Every worker of a first run compiled the same functions for itself, 19 s each."""
    (tmp_path / "functions.py").write_text(MODULE.format(1))
    code = "print(flush=True); from functions import outer; print(outer(5), len(outer.stats.cache_hits))"
    command, pipes = [sys.executable, "-c", code], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (tmp_path / "functions.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until both are about to compile
        processes = [subprocess.Popen(command, cwd=tmp_path, **pipes) for _ in range(2)]
        for process in processes:
            assert process.stdout.readline() == "\n"
    answers = [process.communicate() for process in processes]
    assert sorted(out.strip() for out, _ in answers) == ["6 0", "6 1"]
    assert sorted(err for _, err in answers) == ["", "compiling for this machine, the first time only\n"]
    (tmp_path / "functions.py").write_text(MODULE.format(20))
    found = subprocess.run(command, cwd=tmp_path, check=True, **pipes)
    assert found.stdout.split() == ["25", "0"]


def test_without_a_folder_it_compiles_all_the_same(monkeypatch):
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    assert kept_in() is None

    @compiled(types.int64(types.int64))
    def double(x):
        return 2 * x

    assert double(21) == 42


def test_compiled_functions_take_nothing_from_other_files_with_some():
    """numba looks at a function's own file alone: code from another file would run on as it was."""
    having = {path for path in PACKAGE.rglob("*.py") if "@compiled(" in path.read_text()}
    assert len(having) >= 8
    for path in having:
        tree = ast.parse(path.read_text())
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        ours = {entry.name for node in froms if (node.module or "").startswith("webtext_prep") for entry in node.names}
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and function.decorator_list:
                used = {node.id for one in function.body for node in ast.walk(one) if isinstance(node, ast.Name)}
                decorators = {ast.unparse(one).partition("(")[0] for one in function.decorator_list}
                assert not decorators & {"compiled", "inner"} or not used & ours, (path, function.name, used & ours)
