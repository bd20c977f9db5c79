"""Arguments and environment -> frozen Settings. A bad value is named with its source; arguments win."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from .errors import BadArgument
from .snapshot import (
    LARGE_OBJECTS,
    LARGE_OBJECTS_AT_LEAST_BYTES,
    LARGE_OBJECTS_LIMIT,
    LARGEST_INTEGER,
    SMALLEST_LARGE_OBJECT_BYTES,
)
from .text_format import size_bytes

UNITS: Final = ("generation", "episode", "epoch", "step")
MODES: Final = ("online", "offline", "disabled")
DEFAULT_SERVER: Final = "http://127.0.0.1:8765"
DEFAULT_DIRECTORY: Final = ".leakline"
DEFAULT_MAX_OVERHEAD: Final = 0.01
DEFAULT_MAX_PAUSE_SECONDS: Final = 0.05
DEFAULT_SAMPLE_SECONDS: Final = 1.0
DEFAULT_SPOOL_LIMIT_BYTES: Final = 256 * 2**20
# Below it a census or two would be all that there is room for.
SMALLEST_SPOOL_LIMIT_BYTES: Final = 256 * 2**10
# More often, and the readings alone would cost a share of a core that somebody notices.
SHORTEST_SAMPLE_SECONDS: Final = 0.01
NAME_LIMIT: Final = 128
# As the server takes them.
TAGS_LIMIT: Final = 64
TAG_LIMIT: Final = 64
PHASES_LIMIT: Final = 256
CLASS_NAME_LIMIT: Final = 400
# Of the configuration as JSON: it goes with the announcement of the run, which the server bounds.
CONFIG_LIMIT_BYTES: Final = 64 * 1024
SECRET_FILE_LIMIT_BYTES: Final = 64 * 1024
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything decided before a run starts. ``watch`` holds names of classes, never the classes themselves."""

    run_id: str
    # Empty: nobody named one, and the server takes that of the token, else `DEFAULT_PROJECT`.
    project: str = ""
    # None: a readable name is made from the run id.
    name: str | None = None
    unit: str = "generation"
    total: int | None = None
    watch: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    server: str = DEFAULT_SERVER
    token: str | None = None
    # Certificates (PEM) trusted besides the system's.
    ca_file: Path | None = None
    mode: str = "online"
    quiet: bool = False
    directory: Path = Path(DEFAULT_DIRECTORY)
    # How large the file of one process may become.
    spool_limit_bytes: int = DEFAULT_SPOOL_LIMIT_BYTES
    max_overhead: float = DEFAULT_MAX_OVERHEAD
    # How long one piece of measuring may hold the program up.
    max_pause_seconds: float = DEFAULT_MAX_PAUSE_SECONDS
    # Between two background readings of resident memory; 0: none.
    sample_seconds: float = DEFAULT_SAMPLE_SECONDS
    # Reset the kernel's high-water mark after each reading: it belongs to the program, so only when asked.
    exact_peaks: bool = False
    # Keep the newest lines that the program prints and logs (`output_tail.py`): they may hold anything, so only when
    # asked.
    log_lines: bool = False
    # Trace which lines allocate, for a generation, once a leak is suspected (`allocation_tracing.py`): it slows the
    # program.
    allocations: bool = False
    # Of how many single objects a census reports, and from which size on.
    large_objects: int = LARGE_OBJECTS
    large_from_bytes: int = LARGE_OBJECTS_AT_LEAST_BYTES
    # A line on stderr after every so many generations; 0: none.
    log_every: int = 0
    # Look when the server asks for it (`run_requests.py`).
    requests: bool = True
    rank: int = 0
    world_size: int = 1
    # TORCHELASTIC_RESTART_COUNT: how often the launcher has restarted its workers.
    restarts: int = 0

    @property
    def run_directory(self) -> Path:
        return self.directory / self.run_id

    @property
    def url(self) -> str:
        return f"{self.server}/runs/{self.run_id}"


def resolve(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Return settings from the arguments of ``init`` (None: not given) and the environment.

    Raises BadArgument with the name, the value and where it came from.
    """
    env = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    for name, (variable, parse) in _SETTINGS.items():
        given, text = arguments.get(name), _text(env, variable)
        if given is not None:
            found[name] = parse(given, name, "argument")
        elif text is not None:
            found[name] = parse(text, variable, "environment")
    # Only where it is needed: the working folder may be gone.
    if "directory" not in found:
        found["directory"] = Path(DEFAULT_DIRECTORY).absolute()
    token = _token(*read_secret(env, "LEAKLINE_TOKEN"))
    return Settings(run_id=_run_id(env, found.get("world_size", 1)), token=token, **found)


def _text(environ: Mapping[str, str], variable: str) -> str | None:
    """Return the value of a variable; an empty one counts as not set."""
    return environ.get(variable, "").strip() or None


def read_secret(environ: Mapping[str, str], variable: str) -> tuple[str, str | None]:
    """Return which variable gives a secret, and the secret: ``variable`` itself, or the file that ``<variable>_FILE``
    names.

    Raises BadArgument, which names the file and never its content.
    """
    value = environ.get(variable, "").strip() or None
    from_file = f"{variable}_FILE"
    path = environ.get(from_file, "").strip()
    if not path:
        return variable, value
    if value is not None:
        why = f"{variable} is set too; set one of the two"
    else:
        text, why = _read_line(path)
        if text is not None:
            return from_file, text
    raise BadArgument(from_file, path, why, "environment")


def _read_line(path: str) -> tuple[str | None, str]:
    """Return the one line of text in a file, or None and what is wrong with the file."""
    try:
        # Checked before it is opened: a pipe would block until somebody writes to it.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return None, "is not a regular file"
        with Path(path).open("rb") as file:
            content = file.read(SECRET_FILE_LIMIT_BYTES + 1)
        text = content.decode().strip()
    except OSError as error:
        return None, f"cannot be read ({error.strerror or error})"
    except UnicodeDecodeError:
        return None, "must be text in UTF-8"
    if len(content) > SECRET_FILE_LIMIT_BYTES:
        return None, f"is larger than {SECRET_FILE_LIMIT_BYTES // 1024} KiB"
    if not text:
        return None, "is empty; write the secret into it"
    if not text.isprintable():
        return None, "must be one line of printable characters"
    return text, ""


def checked_name(value: object, name: str, source: str = "argument") -> str:
    """A printable name of 1 to 128 characters."""
    if not isinstance(value, str) or not value.strip():
        raise BadArgument(name, value, "must be a text that is not empty", source)
    text = value.strip()
    if len(text) > NAME_LIMIT or not text.isprintable():
        raise BadArgument(name, value, f"must be at most {NAME_LIMIT} printable characters", source)
    return text


def _texts(most: int, longest: int) -> _Parse:
    def parse(value: object, name: str, source: str) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise BadArgument(name, value, "must be a list of texts", source)
        texts = tuple(dict.fromkeys(checked_name(item, name) for item in value))
        if len(texts) > most:
            raise BadArgument(name, f"<{len(texts)} texts>", f"must be at most {most}", source)
        for text in texts:
            if len(text) > longest:
                why = f"must be at most {longest} characters each"
                raise BadArgument(name, text, why, source)
        return texts

    return parse


def _watch(value: object, name: str, source: str) -> tuple[str, ...]:
    if isinstance(value, (str, type)) or not isinstance(value, Iterable):
        raise BadArgument(name, value, "must be a list of classes or class names", source)
    return tuple(dict.fromkeys(_class_name(checked_type(item, name)) for item in value))


def _class_name(target: type | str) -> str:
    """As the series name it: ``module.Class``, and plain ``list`` of builtins."""
    if isinstance(target, str):
        return target
    module = "" if target.__module__ == "builtins" else f"{target.__module__}."
    return module + target.__qualname__


def checked_type(value: object, name: str) -> type | str:
    """A class, or the name of one with or without its module."""
    if isinstance(value, type):
        return value
    if isinstance(value, str) and len(value) > CLASS_NAME_LIMIT:
        why = f"must be at most {CLASS_NAME_LIMIT} characters"
        raise BadArgument(name, f"{value[:NAME_LIMIT]}...", why)
    if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")):
        return value
    raise BadArgument(name, value, "must be a class or the name of a class, such as 'agents.Agent'")


def _total(value: object, name: str, source: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(name, value, "must be a whole number above zero", source)
    if value > LARGEST_INTEGER:
        # The digits would say nothing, and Python refuses to write very many.
        raise BadArgument(name, f"<{value.bit_length()} bits>", "must be at most 2**53", source)
    return value


def _flag(value: object, name: str, source: str) -> bool:
    if source == "argument":
        if not isinstance(value, bool):
            raise BadArgument(name, value, "must be True or False", source)
        return value
    word = str(value).lower()
    if word not in ("0", "1", "true", "false", "yes", "no", "on", "off"):
        raise BadArgument(name, word, "use 1 or 0", source)
    return word in ("1", "true", "yes", "on")


def _count(value: object, name: str, source: str) -> int:
    if isinstance(value, str) and source == "environment" and value.isdecimal():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadArgument(name, value, "must be a whole number, zero or more", source)
    return value


def _large_objects(value: object, name: str, source: str) -> int:
    found = _count(value, name, source)
    if found > LARGE_OBJECTS_LIMIT:
        raise BadArgument(name, found, f"must be at most {LARGE_OBJECTS_LIMIT}", source)
    return found


def _number(fits: Callable[[float], bool], why: str) -> _Parse:
    def parse(value: object, name: str, source: str) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not fits(number):
            raise BadArgument(name, value, why, source)
        return number

    return parse


def _one_of(*allowed: str) -> _Parse:
    def parse(value: object, name: str, source: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise BadArgument(name, value, f"must be one of {', '.join(allowed)}", source)
        return value

    return parse


def _server(value: object, name: str, source: str) -> str:
    why = "must be an address such as http://127.0.0.1:8765"
    if not isinstance(value, str) or any(c.isspace() for c in value.strip()):
        raise BadArgument(name, value, why, source)
    try:
        parts = urlsplit(value.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise BadArgument(name, value, why, source)
    if "@" in parts.netloc:
        # It would be printed with the address; and it is sent to nobody.
        why = "must not hold a login; LEAKLINE_TOKEN is sent with every request"
        raise BadArgument(name, f"{parts.scheme}://...@{parts.hostname}", why, source)
    return value.strip().rstrip("/")


def _token(variable: str, value: str | None) -> str | None:
    if value is not None and not (value.isascii() and value.isprintable()):
        # It travels in a header; and it is a secret, which no message repeats.
        raise BadArgument(variable, "...", "must be printable ASCII", "environment")
    return value


def _ca_file(value: Any, name: str, source: str) -> Path:
    """Read the file once, so that a wrong one is named at the start and not as a server that does not answer."""
    from .transport.http_connection import secure_context

    path = Path(value).absolute()
    try:
        secure_context(path)
    except OSError as error:
        why = f"cannot be read as certificates in PEM ({error.strerror or error})"
        raise BadArgument(name, value, why, source) from error
    return path


def _directory(value: object, name: str, source: str) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise BadArgument(name, value, "must be the path of a folder", source)
    # The program may change its working folder later; the spool stays where it was.
    return Path(os.fsdecode(value)).absolute()


def _spool_limit(value: object, name: str, source: str) -> int:
    limit, smallest = size_bytes(value, name, source), SMALLEST_SPOOL_LIMIT_BYTES
    if limit < smallest:
        raise BadArgument(name, value, f"must be at least {smallest // 1024} KiB", source)
    return limit


def _large_from(value: object, name: str, source: str) -> int:
    size = size_bytes(value, name, source)
    if size < SMALLEST_LARGE_OBJECT_BYTES:
        # What is smaller is not remembered by name.
        raise BadArgument(name, value, "must be at least 1 MiB", source)
    return size


def _config(value: object, name: str, source: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        # argparse.Namespace and the like
        fields = getattr(value, "__dict__", None)
        if isinstance(value, type) or not isinstance(fields, dict):
            raise BadArgument(name, value, "must be a mapping of names to plain values", source)
        value = fields
    plain = plain_json(value)
    assert isinstance(plain, dict)
    return plain


def plain_json(value: Any, depth: int = 4) -> Any:
    """``value`` as bounded JSON: what has no place in JSON is reported by its type, never by its contents."""
    return _Plain(CONFIG_LIMIT_BYTES).plain(value, depth)


class _Plain:
    """One value as JSON of about ``room`` bytes; what comes after them is left out."""

    def __init__(self, room: int) -> None:
        self._room = room

    def plain(self, value: Any, depth: int) -> Any:
        if depth > 0 and isinstance(value, Mapping):
            return dict(self._pairs(value, depth - 1))
        if depth > 0 and isinstance(value, (list, tuple)):
            return list(self._items(value, depth - 1))
        scalar = _scalar(value)
        # Two for what stands around it.
        self._room -= len(json.dumps(scalar)) + 2
        return scalar

    def _pairs(self, mapping: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, Any]]:
        for key, value in islice(mapping.items(), 200):
            name = _scalar(str(key)[:NAME_LIMIT])
            self._room -= len(json.dumps(name)) + 2
            if self._room < 0:
                return
            yield name, self.plain(value, depth)

    def _items(self, items: Iterable[Any], depth: int) -> Iterator[Any]:
        for item in islice(items, 200):
            if self._room < 0:
                return
            self._room -= 2
            yield self.plain(item, depth)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Python refuses to write very many digits.
        return value if value.bit_length() < 1024 else f"<{value.bit_length()} bits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return unicode_text(value[:1000])
    if isinstance(value, os.PathLike):
        return unicode_text(os.fsdecode(value)[:1000])
    return f"<{type(value).__name__}>"


def unicode_text(text: str) -> str:
    """Half a surrogate pair (from a file name, from cut text) becomes "?": such a text is no valid JSON."""
    return text.encode("utf-8", "replace").decode()


def _run_id(environ: Mapping[str, str], world_size: int) -> str:
    given = _text(environ, "LEAKLINE_RUN_ID")
    if given is not None:
        if not _RUN_ID.fullmatch(given):
            why = "must be 1 to 64 letters, digits, dots, dashes or underscores"
            raise BadArgument("LEAKLINE_RUN_ID", given, why, "environment")
        return given
    key = _launch_key(environ) if world_size > 1 else None
    if key is not None:
        return "ranks-" + hashlib.sha256(key.encode()).hexdigest()[:16]
    # Sorts by time; 40 random bits keep two runs of one millisecond apart.
    return f"{time.time_ns() // 1_000_000:011x}{os.urandom(5).hex()}"


def _launch_key(environ: Mapping[str, str]) -> str | None:
    """What all ranks of one launch share and two launches do not; None when nothing of the kind is known.

    That is the id of the rendezvous or of the batch job. Without either, the master's address; but when the whole
    launch is on this machine, launch after launch has the same one, so the launcher distinguishes them.
    """
    launch = _text(environ, "TORCHELASTIC_RUN_ID")
    if launch is not None and launch != "none":
        return f"torchelastic {launch}"
    job = _text(environ, "SLURM_JOB_ID")
    if job is not None:
        return f"slurm {job} {_text(environ, 'SLURM_STEP_ID')}"
    master = _text(environ, "MASTER_ADDR")
    address = None if master is None else f"master {master}:{_text(environ, 'MASTER_PORT')}"
    if not _is_on_one_machine(environ, master):
        return address
    launcher = _launcher()
    return None if launcher is None else f"{address} {launcher}"


def _is_on_one_machine(environ: Mapping[str, str], master: str | None) -> bool:
    here, everywhere = (
        _count(_text(environ, name) or default, name, "environment")
        for name, default in (("LOCAL_WORLD_SIZE", 0), ("WORLD_SIZE", 1))
    )
    if here:
        return here == everywhere
    return master in (None, "localhost", "::1") or str(master).startswith("127.")


def _launcher() -> str | None:
    """The parent process and when it started. Not init: it adopts what has lost its parent, of every launch."""
    parent = os.getppid()
    ticks = start_ticks(parent) if parent > 1 else ""
    return f"launcher {parent} {ticks}" if ticks else None


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, the state (proc(5)); empty where the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The name, in parentheses, may hold spaces.
    return stat.rpartition(")")[2].split()


def start_ticks(pid: int) -> str:
    """Field 22 of /proc/PID/stat, so that a reused process id is not the same launcher; empty where unknown."""
    fields = stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


_Parse = Callable[[Any, str, str], Any]
# Field of `Settings` -> its variable (empty: an argument alone) and how its value is read.
_SETTINGS: Final[Mapping[str, tuple[str, _Parse]]] = {
    "project": ("LEAKLINE_PROJECT", checked_name),
    "name": ("LEAKLINE_RUN_NAME", checked_name),
    "unit": ("", _one_of(*UNITS)),
    "total": ("", _total),
    "watch": ("", _watch),
    "phases": ("", _texts(PHASES_LIMIT, NAME_LIMIT)),
    "config": ("", _config),
    "tags": ("", _texts(TAGS_LIMIT, TAG_LIMIT)),
    "server": ("LEAKLINE_SERVER", _server),
    "ca_file": ("LEAKLINE_CA_FILE", _ca_file),
    "mode": ("LEAKLINE_MODE", _one_of(*MODES)),
    "quiet": ("LEAKLINE_QUIET", _flag),
    "directory": ("LEAKLINE_DIR", _directory),
    "spool_limit_bytes": ("LEAKLINE_SPOOL_LIMIT", _spool_limit),
    "max_overhead": (
        "LEAKLINE_MAX_OVERHEAD",
        _number(
            lambda share: 0 <= share <= 1,
            "must be a share of wall time between 0 and 1, such as 0.01",
        ),
    ),
    "max_pause_seconds": (
        "LEAKLINE_MAX_PAUSE",
        _number(
            lambda seconds: 0 < seconds <= 60, "must be seconds above 0 and up to 60, such as 0.05"
        ),
    ),
    "sample_seconds": (
        "LEAKLINE_SAMPLE_SECONDS",
        _number(
            lambda seconds: seconds == 0 or SHORTEST_SAMPLE_SECONDS <= seconds <= 3600,
            f"must be seconds from {SHORTEST_SAMPLE_SECONDS} to 3600, or 0 for no readings between snapshots",
        ),
    ),
    "exact_peaks": ("LEAKLINE_EXACT_PEAKS", _flag),
    "log_lines": ("LEAKLINE_LOG_LINES", _flag),
    "allocations": ("LEAKLINE_ALLOCATIONS", _flag),
    "large_objects": ("LEAKLINE_LARGE_OBJECTS", _large_objects),
    "large_from_bytes": ("LEAKLINE_LARGE_FROM", _large_from),
    "log_every": ("LEAKLINE_LOG_EVERY", _count),
    "requests": ("LEAKLINE_REQUESTS", _flag),
    "rank": ("RANK", _count),
    "world_size": ("WORLD_SIZE", lambda value, name, source: max(1, _count(value, name, source))),
    "restarts": ("TORCHELASTIC_RESTART_COUNT", _count),
}
