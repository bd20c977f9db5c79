"""Entry point for `python -m leakline`, which is the same as the `leakline` command."""

import sys

from .cli import main

sys.exit(main())
