"""`python -m gpt2_train` is `gpt2`; `torchrun ... -m gpt2_train train ...` runs it on many machines."""

import sys

from gpt2_train.cli import main

if __name__ == "__main__":
    sys.exit(main())
