"""Both ways with Megatron-LM's own reader and writer, as megatron-core installs them."""

import warnings

import numpy as np
import pytest

from indexed_tokens import IndexedTokens, bin_path, idx_path

CORPORA = [
    pytest.param([[1, 2, 50256], [3, 50256]], id="the golden one"),
    pytest.param([[7]], id="one token"),
    pytest.param([[5, 6], [], [], [7, 8, 9]], id="empty documents"),
    pytest.param([list(range(100)) for _ in range(50)], id="many documents"),
]


@pytest.fixture(scope="module")
def megatron():
    """megatron-core's module; importing it takes seconds and warns about extensions that are not needed here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
@pytest.mark.parametrize("documents", CORPORA)
def test_megatron_reads_what_we_write(megatron, write_tokens, documents, dtype):
    prefix = write_tokens(documents, dtype=np.dtype(dtype).str)
    theirs = megatron.IndexedDataset(str(prefix))
    rows = [document for document in documents if document]
    assert [theirs[number].tolist() for number in range(len(theirs))] == rows
    assert theirs.document_indices.tolist() == IndexedTokens(prefix).document_index.tolist()
    assert theirs.index.dtype == dtype
    assert theirs.get(0, offset=len(rows[0]) - 1, length=1).tolist() == rows[0][-1:]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
@pytest.mark.parametrize("documents", CORPORA)
def test_we_read_what_megatron_writes_and_write_the_same_bytes(megatron, write_tokens, tmp_path, documents, dtype):
    import torch

    prefix = tmp_path / "theirs"
    builder = megatron.IndexedDatasetBuilder(str(bin_path(prefix)), dtype=dtype)
    for document in documents:
        if document:
            builder.add_item(torch.tensor(document, dtype=torch.int64))
        builder.end_document()
    builder.finalize(str(idx_path(prefix)))
    tokens = IndexedTokens(prefix)
    assert [row.tolist() for row in tokens] == [document for document in documents if document]
    assert tokens.documents == len(documents)
    ours = write_tokens(documents, dtype=np.dtype(dtype).str)
    for path in (bin_path, idx_path):
        assert path(ours).read_bytes() == path(prefix).read_bytes()


def test_megatron_merges_to_the_bytes_of_one_writer(megatron, write_tokens, tmp_path):
    """So does `webtext merge-tokens`: see test_merge_tokens.py."""
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for name, part in (("a", [[1, 2], [3]]), ("b", [[4], [5, 6]])):
        builder.add_index(str(write_tokens(part, name=name)))
    builder.finalize(str(tmp_path / "theirs.idx"))
    ours = write_tokens([[1, 2], [3], [4], [5, 6]], name="ours")
    for path in (bin_path, idx_path):
        assert path(ours).read_bytes() == path(tmp_path / "theirs").read_bytes()


def test_a_document_of_several_sequences_and_modes_is_read(megatron, tmp_path):
    """Multimodal files of Megatron-LM carry one more byte per sequence; ours never do."""
    prefix = tmp_path / "theirs"
    builder = megatron.IndexedDatasetBuilder(str(bin_path(prefix)), dtype=np.uint16, multimodal=True)
    builder.add_document(np.array([1, 2, 3, 4], np.uint16), [3, 1], [0, 1])
    builder.finalize(str(idx_path(prefix)))
    tokens = IndexedTokens(prefix)
    assert [row.tolist() for row in tokens] == [[1, 2, 3], [4]]
    assert (tokens.documents, tokens.document_index.tolist()) == (1, [0, 2])
