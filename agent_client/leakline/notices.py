"""The few lines people see, on stderr through the logger "leakline": never on stdout, never between progress bars."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("leakline")


class _StderrHandler(logging.Handler):
    """Writes to the stderr of the moment; stands back once the program has set up its own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        line = self.format(record)
        bars = sys.modules.get("tqdm")
        if bars is not None and hasattr(bars, "tqdm"):
            bars.tqdm.write(line, file=sys.stderr)
        elif sys.stderr is not None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def set_up() -> None:
    """Make the lines visible in a program without logging of its own. Called by init, not at import."""
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())
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
