"""Programs whose first answer was wrong once: three of each kind, every one with a healthy twin.

What Leakline is measured by is the catalogue; nothing was ever tuned to its programs that are held back. These are for
the opposite: each kind of wrong answer stays corrected.
"""

from __future__ import annotations

from typing import Final

from tests.leaks.catalogue import Case

CASES: Final[tuple[Case, ...]] = ()
