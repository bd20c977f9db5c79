"""Exceptions of the client, raised only by set-up, declarations and commands, never by measurements.

LeaklineError            any error that is shown to the user as one line
+-- BadArgument          invalid argument or environment variable; carries its name, value and source
+-- MissingPackage       the framework of a callback is not installed; carries the package name
+-- SpoolError           a spool cannot be read; carries the path
+-- ServerUnreachable    the server is not responding; carries the address
|   +-- ServerBusy       the server responds but refuses requests for now; carries the reason
+-- ServerRefused        the server returned an error; carries its status and code
"""

from __future__ import annotations


class LeaklineError(Exception):
    """Base class of all client errors. The message says in one line what went wrong and what to do about it."""

    exit_status = 1


class BadArgument(LeaklineError, ValueError):
    """The argument or environment variable ``name`` has an invalid ``value``. ``source`` says where it was set."""

    exit_status = 2

    def __init__(self, name: str, value: object, why: str, source: str = "argument") -> None:
        super().__init__(f"{source} {name}={value!r}: {why}")
        self.name, self.value, self.source = name, value, source


class MissingPackage(LeaklineError, ImportError):
    def __init__(self, module: str, package: str, extra: str) -> None:
        super().__init__(f"{module} needs {package}; install it with: pip install '{extra}'")
        self.package = package


class SpoolError(LeaklineError):
    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class ServerUnreachable(LeaklineError):
    """The server did not respond.

    ``after_seconds`` is the server's retry delay, or None if the server sent no delay. ``sentence`` is the message
    without the advice.
    """

    _wrong, _to_do = "cannot reach a Leakline server at {} ({})", "start one with: leakline serve"

    def __init__(self, address: str, why: str, after_seconds: float | None = None) -> None:
        self.sentence = self._wrong.format(address, why)
        super().__init__(f"{self.sentence}; {self._to_do}")
        self.address, self.after_seconds = address, after_seconds


class ServerBusy(ServerUnreachable):
    """The server is running but refuses requests for now, so the message does not advise starting a server."""

    _wrong, _to_do = (
        "{} is temporarily refusing requests ({})",
        "try again later (recorded data is kept)",
    )


class ServerRefused(LeaklineError):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code
