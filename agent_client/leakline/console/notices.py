"""The few lines people see, on stderr through the logger "leakline": never on stdout, never between progress bars."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

logger = logging.getLogger("leakline")


class _StderrHandler(logging.Handler):
    """Writes to the stderr of the moment. A closed or broken one is no news for a program."""

    def emit(self, record: logging.LogRecord) -> None:
        # OSError: broken pipe. ValueError: closed, or not encodable. RuntimeError: a signal came meanwhile.
        with suppress(OSError, ValueError, RuntimeError):
            _write(self.format(record))


def _write(line: str) -> None:
    bars = sys.modules.get("tqdm")
    if sys.stderr is None:
        return
    if bars is not None and hasattr(bars, "tqdm"):
        bars.tqdm.write(line, file=sys.stderr)
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def set_up() -> None:
    """Make the lines visible, on stderr and nowhere else. Called by init, not at import."""
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())
    # The program's own logging may go to stdout, where its results are.
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


class Notices:
    """Says a line unless quiet; each ``once`` key at most once."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._said: set[str] = set()

    def say(self, line: str, *, once: str | None = None) -> None:
        if self._quiet or (once is not None and once in self._said):
            return
        if once is not None:
            self._said.add(once)
        logger.info("leakline: %s", line)
