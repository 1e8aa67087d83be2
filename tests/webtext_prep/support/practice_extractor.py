"""An extractor that does what its page says; worker processes import it from here."""

import importlib
import os
import signal

from webtext_prep.extraction import extractors
from webtext_prep.extraction.processes import workers


def practice(html, url, charset=None):
    match html:
        case b"spin":
            while True:
                pass
        case b"wait":
            signal.pause()
        case b"halt":
            os.kill(os.getpid(), signal.SIGSTOP)
        case b"die":
            os._exit(3)
        case b"memory":
            bytearray(1 << 40)
        case b"raise":
            raise ValueError("as it says")
        case b"who":
            return extractors.Extracted(f"{os.getpid()} {os.getppid()}")
        case b"nonsense":
            workers._encode = lambda parsed: b"no result"
    return extractors.Extracted(html.decode())


def work(pages, results, limits):
    """A worker that uses it, in the place of resiliparse."""
    extractors.EXTRACTORS["resiliparse"] = practice
    workers.work(pages, results, limits)


def work_without_library(pages, results, limits):
    """One whose extractor is not installed."""
    extractors.EXTRACTORS["resiliparse"] = lambda *_: importlib.import_module("quince")
    workers.work(pages, results, limits)


def end_at_once(pages, results, limits):
    os._exit(7)
