"""`webtext decontaminate`: n-grams of evaluation texts are found exactly, and cut out by the published rules."""

import json
import random
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webtext_prep.contamination.cutting import cut
from webtext_prep.contamination.evaluation import EvaluationText, NGrams, read_evaluation
from webtext_prep.contamination.words import places_of, words_of
from webtext_prep.documents.compression import read_chunks
from webtext_prep.documents.document import Document
from webtext_prep.documents.shards import shards_in, write_documents
from webtext_prep.errors import InputError
from webtext_prep.lineage import trace
from webtext_prep.reporting.gathering import gather
from webtext_prep.stages import decontaminate
from webtext_prep.stages.decontaminate import _Matcher

WORDS = [f"word{number}" for number in range(1000)]


def sentences(seed: int, count: int) -> str:
    """Sentences of random words, some of them long."""
    source = random.Random(seed)
    return " ".join(" ".join(source.choices(WORDS, k=source.randint(5, 20))).capitalize() + "." for _ in range(count))


QUESTION = "Alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron."
