"""Child processes of the demo and of drills, isolated from the terminal's Ctrl-C and ended within two seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, Final

from ..errors import LeaklineError, ServerRefused
from .server_queries import Asker

# Ctrl-C has to end everything within two seconds, so children that are still running after this time are killed.
END_SECONDS: Final = 1.5
LAST_WORDS_BYTES: Final = 4096
READY_SECONDS: Final = 30.0
VERDICT_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.1


@contextmanager
def ends_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP (a closed terminal) end the command in the same way as Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore signals while children are ended and files are removed, so that a second Ctrl-C does not interrupt the
    cleanup.
    """
    before = {
        n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Child:
    """A child process. `lines` yields its stdout; its stderr is either kept for `last_words` or passed through."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        errors_shown: bool,
    ) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        # Start a new session, so that the terminal's Ctrl-C reaches only the parent, which then ends its children in
        # order.
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=None if errors_shown else self._errors, text=True, start_new_session=True,
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        yield from self.process.stdout

    def wait(self) -> int:
        return self.process.wait()

    def last_words(self) -> str:
        """Return the last line of stderr, or the exit status if stderr is empty."""
        size = self._errors.seek(0, 2)
        self._errors.seek(max(0, size - LAST_WORDS_BYTES))
        lines = self._errors.read().decode(errors="replace").split("\n")
        printed = [line.strip() for line in lines if line.strip()]
        return printed[-1] if printed else f"exit status {self.process.poll()}"

    def close(self) -> None:
        self._errors.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Children:
    """Context manager that ends all child processes on exit."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        errors_shown: bool = False,
    ) -> Child:
        child = Child(name, command, environment, errors_shown)
        self._children.append(child)
        return child

    def wait_for_any(self) -> None:
        """Wait until the oldest running child ends."""
        running = [child for child in self._children if not child.ended]
        if running:
            running[0].wait()

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with signals_ignored():
            self._end_all()

    def _end_all(self) -> None:
        # End the newest first: a training process can send its last data while the server still runs.
        running = [child for child in reversed(self._children) if not child.ended]
        deadline = time.monotonic() + END_SECONDS
        for child in running:
            child.process.terminate()
        for child in running:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        for child in self._children:
            child.close()


def start_server(
    children: Children,
    port: int,
    environment: Mapping[str, str] | None = None,
    *,
    errors_shown: bool = False,
) -> Asker:
    """Start `leakline serve` on the loopback interface. Raises LeaklineError if the server does not start."""
    # If LEAKLINE_PUBLIC_URL were set, the server would print that URL instead of its local address.
    local = {k: v for k, v in (environment or os.environ).items() if k != "LEAKLINE_PUBLIC_URL"}
    command = [
        sys.executable, "-P", "-m", "leakline", "serve", "--host", "127.0.0.1", "--port", str(port)
    ]  # fmt: skip
    server = children.start("server", command, local, errors_shown=errors_shown)
    # The first line that the server prints contains its address. A server that prints nothing in time is killed.
    patience = threading.Timer(READY_SECONDS, server.process.kill)
    patience.start()
    line = next(server.lines(), "")
    if "http://" in line:
        patience.cancel()
        return Asker(line[line.index("http://") :].split()[0])
    server.wait()
    late = not patience.is_alive()
    patience.cancel()
    reason = f"no response within {READY_SECONDS:.0f} s" if late else server.last_words()
    raise LeaklineError(f"the server did not start: {reason}")


def wait_for_verdict(asker: Asker, run: str, generations: int) -> dict[str, Any]:
    """Wait for a run to end and for its verdict on all generations, and return the run with its verdict.

    After VERDICT_SECONDS, the newest state is returned. Raises LeaklineError if there is no verdict at all.
    """
    deadline = time.monotonic() + VERDICT_SECONDS
    while True:
        is_late = time.monotonic() > deadline
        try:
            found = asker.get(f"/runs/{run}")
            verdict = asker.get(f"/runs/{run}/verdict")
        except ServerRefused as refused:
            if refused.status != 404:
                raise
            if is_late:
                raise LeaklineError(f"the server has no verdict on run {run}") from None
        else:
            is_whole = found["state"] != "running" and verdict["generations"] >= generations
            if is_whole or is_late:
                return {**found, "verdict": verdict}
        time.sleep(POLL_SECONDS)
