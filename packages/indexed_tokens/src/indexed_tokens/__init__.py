"""GPT-2 tokens and the files that hold them: the contract between text preparation and training.

`Tokenizer` turns text into GPT-2 token ids; `IndexedTokensWriter` and `IndexedTokens` write and read them as
memory-mapped `.bin/.idx` pairs, byte-compatible with Megatron-LM both ways.
"""

from indexed_tokens.checksums import check_token_files
from indexed_tokens.reader import IndexedTokens, IndexedTokensError, bin_path, held_out_prefix, idx_path, prefix_of
from indexed_tokens.tokenizer import (
    GPT2_VOCABULARY_SIZE,
    Tokenizer,
    corpus_tokenizer,
    save_corpus_tokenizer,
    tokenizer_path,
)
from indexed_tokens.tokenizer_files import END_OF_TEXT
from indexed_tokens.writer import IndexedTokensWriter, smallest_dtype

__all__ = [
    "END_OF_TEXT",
    "GPT2_VOCABULARY_SIZE",
    "IndexedTokens",
    "IndexedTokensError",
    "IndexedTokensWriter",
    "Tokenizer",
    "bin_path",
    "check_token_files",
    "corpus_tokenizer",
    "held_out_prefix",
    "idx_path",
    "prefix_of",
    "save_corpus_tokenizer",
    "smallest_dtype",
    "tokenizer_path",
]
