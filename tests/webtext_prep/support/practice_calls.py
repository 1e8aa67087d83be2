"""Tasks for the tests of the engine; worker processes import them from here."""

import os
import signal
import threading


def square(number, report):
    report(number)
    return number * number


def process_id(_, report):
    return os.getpid()


def fail(error, report):
    if error is not None:
        raise error


def fail_or_wait(error, report):
    if error is not None:
        raise error
    threading.Event().wait()


def die(now, report):
    if now:
        os.kill(os.getpid(), signal.SIGKILL)
