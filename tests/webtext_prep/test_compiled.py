"""Machine code is made once, by one process, and kept by numba; a file with compiled functions stands for itself."""

import ast
import fcntl
import subprocess
import sys
from pathlib import Path

import numba
from numba import types

import webtext_prep
from webtext_prep.text.compiled import compiled, kept_in

PACKAGE = Path(webtext_prep.__file__).parent
MODULE = """
from numba import types
from webtext_prep.text.compiled import compiled, inner
@inner
def more(x):
    return x + {}
@compiled(types.int64(types.int64))
def outer(x):
    return more(x)
"""


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
    assert sorted(err for _, err in answers) == ["", "compiling for this machine, the first time only, up to 15 s\n"]
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
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    having = {path for path, source in sources.items() if "@compiled(" in source} - {PACKAGE / "text" / "compiled.py"}
    assert len(having) >= 8
    for path in having:
        imported = [node for node in ast.walk(ast.parse(sources[path])) if isinstance(node, ast.ImportFrom)]
        for node in imported:
            module = PACKAGE.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            names = {entry.name for entry in node.names}
            decorated = [entry for entry in ast.walk(ast.parse(sources.get(module, ""))) if _is_compiled(entry)]
            assert module not in having or not names & {entry.name for entry in decorated}, (path, names)


def _is_compiled(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any("compiled" in ast.unparse(one) for one in node.decorator_list)
