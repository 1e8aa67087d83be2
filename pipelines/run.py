"""Runs a whole pipeline as one TOML file describes it: `./uvw run pipelines/run.py quickstart`.

What it does is in the package webtext_run.
"""

import sys

if __name__ == "__main__":
    if not {"-h", "--help"} & set(sys.argv):
        # Before what follows: on a new machine, whose modules are not yet compiled, importing takes many seconds.
        print("run.py: loading the commands", file=sys.stderr, flush=True)
    from webtext_run.command import main

    sys.exit(main())
