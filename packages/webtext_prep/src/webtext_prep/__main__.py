"""`python -m webtext_prep` is `webtext`."""

import sys

from webtext_prep.cli import main

sys.exit(main())
