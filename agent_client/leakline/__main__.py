"""`python -m leakline` is the `leakline` program."""

import sys

from .cli import main

sys.exit(main())
