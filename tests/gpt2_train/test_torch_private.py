"""Private names of torch: in one module alone, there in the pinned torch, doing there what is asked of them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.gpt2_train import forks
from torch import nn

from gpt2_train import torch_private
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.distributed.mesh import make_world

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "packages" / "gpt2_train" / "src" / "gpt2_train"
OTHERS = {"_asdict", "_exit", "_Unpickler", "_replace"}
"""Of Python, which names some of what it promises like that."""


def named_in(nodes: list[ast.AST]) -> set[str]:
    """What a module gives a name to."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = {node.name for node in nodes if isinstance(node, kinds)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return found | {
        node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def private_names(nodes: list[ast.AST], own: set[str]) -> Iterator[str]:
    """What a module uses that begins with an underscore and is none of the package's `own` names."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            is_private = node.attr.startswith("_") and (not node.attr.endswith("__") or "chunk" in node.attr)
            if is_private and node.attr not in own | OTHERS:
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"{node.module}: {name}" for name in names if name.startswith("_"))


def test_no_other_module_uses_private_names_of_torch() -> None:
    """They were spread over seven modules, any of which a new torch could break."""
    modules = {
        path.relative_to(SOURCE).as_posix(): [*ast.walk(ast.parse(path.read_text()))] for path in SOURCE.rglob("*.py")
    }
    own = set().union(*map(named_in, modules.values()))
    found = {name: [*private_names(nodes, own)] for name, nodes in modules.items()}
    assert found.pop("torch_private.py")
    assert {name: names for name, names in found.items() if names} == {}


def test_the_newest_torch_that_is_taken_is_the_one_that_is_named() -> None:
    bounds = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]["dependencies"]
    (torch_bound,) = [bound for bound in bounds if bound.startswith("torch>")]
    major, minor = map(int, torch_private.NEWEST.split("."))
    assert torch_bound.endswith(f",<{major}.{minor + 1}")
    assert tuple(map(int, torch.__version__.split(".")[:2])) <= (major, minor)


@pytest.mark.exhaustive
def test_the_newest_torch_has_them_too(tmp_path: Path) -> None:
    """Fetched from the package index into uv's cache; everything else is what these tests run with."""
    environment = tmp_path / "newest"
    uv = [ROOT / "uvw", "--quiet", "--no-config"]
    subprocess.run([*uv, "venv", environment, "--python", sys.executable], check=True, cwd=tmp_path)
    python = environment / "bin" / "python"
    newest = f"torch=={torch_private.NEWEST}.*"
    if subprocess.run([*uv, "pip", "install", "--python", python, newest], check=False, cwd=tmp_path).returncode:
        pytest.skip(f"torch {torch_private.NEWEST} can't be had here")
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "rest.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    words = [python, "-m", "pytest", __file__, "-m", "not exhaustive", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_name_that_is_gone_is_one_sentence() -> None:
    with pytest.raises(
        Gpt2Error, match=rf"torch 2\.\S+ has no _gone, which .* install torch {torch_private.NEWEST}, or"
    ):
        torch_private.required(types.SimpleNamespace(), "_gone")


def test_norms_of_many_tensors() -> None:
    tensors = [torch.tensor([6.0, 8.0]), torch.tensor([10.0])]
    assert [float(norm) for norm in torch_private.foreach_norm(tensors)] == [10.0, 10.0]


def test_what_has_no_memory_is_given_some() -> None:
    with torch.device("meta"):
        layer = nn.Linear(2, 3)
    layer.bias = nn.Parameter(torch.ones(3))
    torch_private.give_memory(layer, "cpu")
    assert layer.weight.device.type == "cpu" and layer.weight.shape == (3, 2) and layer.bias.tolist() == [1.0] * 3


def test_attention_is_one_of_the_operators() -> None:
    x = torch.randn(1, 1, 4, 8)
    with torch.profiler.profile() as found:
        F.scaled_dot_product_attention(x, x, x, is_causal=True)
    used = {event.key for event in found.key_averages()}
    assert used & {operator.name().partition(".")[0] for operator in torch_private.ATTENTION_OPERATORS}


@pytest.mark.skipif(not torch_private.packs_weights(), reason="a build without oneDNN")
def test_packed_weights_are_those_of_a_linear_layer() -> None:
    x, layer = torch.randn(5, 8), nn.Linear(8, 16)
    with torch.no_grad():
        torch.testing.assert_close(torch_private.packed_linear(layer.weight, layer.bias, 5)(x), layer(x))


def of_two() -> dict[str, Any]:
    """What one of two processes finds."""
    from torch.distributed.tensor import Shard, distribute_tensor

    world = make_world(torch.device("cpu"), 2)
    assert world.mesh is not None
    mesh, group = world.mesh["tp"], world.mesh.get_group("tp")
    whole = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)], src_data_rank=None)
    offsets, sizes = torch_private.own_piece(whole)
    part = torch_private.local_tensor(whole)
    like = torch_private.as_part_of(part + 1, whole)
    name, rank = group.group_name, dist.get_rank()
    added = torch_private.wait(torch_private.all_reduce(torch.full((2,), rank + 1.0), "sum", name))
    return {
        "piece": [list(offsets), list(sizes)],
        "part": part.tolist(),
        "whole": (like.full_tensor() - whole.full_tensor()).unique().tolist(),
        "added": added.tolist(),
    }


def test_parts_of_tensors_and_their_sums() -> None:
    done = forks.in_group(2, of_two)
    for rank, process in enumerate(done):
        assert json.loads(process.stdout) == {
            "piece": [[2 * rank, 0], [2, 2]],
            "part": [[4.0 * rank, 4.0 * rank + 1], [4.0 * rank + 2, 4.0 * rank + 3]],
            "whole": [1.0],
            "added": [3.0, 3.0],
        }


def test_an_older_torch_is_not_asked_to_isolate_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 and 2.12 know no `isolate_recompiles`: training on a GPU ended with a TypeError there."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    with torch._dynamo.config.patch(recompile_limit=8):
        for isolates, limit in ((True, 8), (False, 64)):
            monkeypatch.setattr(torch_private, "_ISOLATES", isolates)
            assert torch_private.compiled_whole(len, isolated=True)([1]) == 1
            assert ("isolate_recompiles" in asked.pop(), torch._dynamo.config.recompile_limit) == (isolates, limit)
