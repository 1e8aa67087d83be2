"""torch.compile on GPUs that are not there: Inductor and Triton compile for the GPU that is pretended."""

import shutil

import pytest


@pytest.fixture
def no_compiler(tmp_path) -> dict[str, str]:
    """The environment of a machine without a C compiler, as slim images for CUDA are."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "env", "uname", "ldconfig"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return {"PATH": str(folder)}


@pytest.mark.exhaustive
def test_without_a_c_compiler_a_run_is_not_compiled_and_says_so(train, no_compiler):
    """torch.compile, the default on a GPU, ended the run with `Failed to find C compiler`."""
    done = train("--steps", 2, compiled=True, **no_compiler)
    assert "not compiled, and so slower: there is no C compiler" in done.errors
    assert "step 2/2" in done.errors


@pytest.mark.exhaustive
def test_compiling_is_refused_at_once_where_it_was_asked_for(train, no_compiler):
    done = train("--steps", 2, "--compile", compiled=True, fine=False, **no_compiler)
    assert done.code == 2
    assert "install it, or give --no-compile" in done.errors


def test_the_doctor_says_that_nothing_is_compiled(on_gpus, no_compiler):
    done = on_gpus(["doctor"], **no_compiler)
    assert "models are not compiled: there is no C compiler" in done.output


@pytest.mark.exhaustive
def test_compiled_kernels_are_made_for_the_gpu(train, tmp_path):
    """The graphs of a block become kernels of Triton that the steps launch."""
    flags = ["--steps", 2, "--layers", 1, "--split", "1,0,0", "--dropout", 0, "--compile"]
    done = train(*flags, compiled=True, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "compiled"))
    (asked,) = (asked for asked in done.asked if asked.calls("product"))
    assert any(name.startswith("triton_") for name in asked.of("launch"))
