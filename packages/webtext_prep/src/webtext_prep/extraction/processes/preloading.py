"""Imported by the server that forks extraction workers, which then need not import an extractor each."""

import contextlib
import gc
import os
import warnings

from webtext_prep.extraction.extractors import warm_up
from webtext_prep.extraction.processes.workers import EXTRACTOR

with contextlib.suppress(Exception), warnings.catch_warnings():  # a worker will say what is wrong
    warnings.simplefilter("ignore")
    warm_up(os.environ[EXTRACTOR])
gc.collect()
