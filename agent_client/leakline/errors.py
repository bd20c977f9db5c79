"""The exceptions of the client. They are raised at set-up and by commands only, never inside a training loop.

LeaklineError            anything we tell a person in one line
+-- BadArgument          a wrong argument or environment value; carries its name, value and source
+-- MissingPackage       a framework that a callback is for is not installed; carries its name
+-- SpoolError           a spool cannot be read; carries the path
+-- ServerUnreachable    no answer; carries the address
|   +-- ServerBusy       an answer that says "not now", and why
+-- ServerRefused        an error answer; carries its status and code
"""

from __future__ import annotations


class LeaklineError(Exception):
    """One line: what was wrong, what to do."""

    exit_status = 1


class BadArgument(LeaklineError, ValueError):
    """``name`` has the unusable ``value``; ``source`` says where it came from."""

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
    """``after_seconds``: when to ask again, if the server said so. ``sentence``: what was wrong, without what to do."""

    _wrong, _to_do = "no Leakline server answers at {} ({})", "start one with: leakline serve"

    def __init__(self, address: str, why: str, after_seconds: float | None = None) -> None:
        self.sentence = self._wrong.format(address, why)
        super().__init__(f"{self.sentence}; {self._to_do}")
        self.address, self.after_seconds = address, after_seconds


class ServerBusy(ServerUnreachable):
    """It is there: a message to start one would mislead."""

    _wrong, _to_do = "{} refuses for now ({})", "try again later, what is recorded is kept"


class ServerRefused(LeaklineError):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code
