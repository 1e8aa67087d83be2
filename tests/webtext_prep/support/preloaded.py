"""What worker processes of the tests have imported when they begin, as they are forks of one that has."""

import gc

import practice_stages
import pytest  # noqa: F401

from indexed_tokens import Tokenizer
from webtext_prep import cli
from webtext_prep.dedup import kernels  # noqa: F401
from webtext_prep.extraction.extractors import EXTRACTORS, warm_up
from webtext_prep.stages.tokenize import corpus_encoder
from webtext_prep.text import classifier_kernels, contamination_kernels  # noqa: F401

for stage in (*cli.find_stages().values(), practice_stages.Shout):
    stage.name  # which imports it
for extractor in EXTRACTORS:
    warm_up(extractor)
corpus_encoder(Tokenizer.gpt2())

# None of that is garbage, and each process would copy it by looking.
gc.collect()
gc.freeze()
