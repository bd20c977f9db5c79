"""Resolves arguments and environment variables into frozen Settings.

Arguments take precedence. An error about an invalid value names the value's source.
"""

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
    DEFAULT_UNIT,
    LARGE_OBJECTS,
    LARGE_OBJECTS_AT_LEAST_BYTES,
    LARGE_OBJECTS_LIMIT,
    LARGEST_INTEGER,
    SMALLEST_LARGE_OBJECT_BYTES,
)
from .text_format import size_bytes

UNITS: Final = (DEFAULT_UNIT, "episode", "epoch", "step")
MODES: Final = ("online", "offline", "disabled")
DEFAULT_SERVER: Final = "http://127.0.0.1:8765"
DEFAULT_DIRECTORY: Final = ".leakline"
DEFAULT_MAX_OVERHEAD: Final = 0.01
DEFAULT_MAX_PAUSE_SECONDS: Final = 0.05
DEFAULT_SAMPLE_SECONDS: Final = 1.0
DEFAULT_SPOOL_LIMIT_BYTES: Final = 256 * 2**20
# A smaller spool would have room for only one or two censuses.
SMALLEST_SPOOL_LIMIT_BYTES: Final = 256 * 2**10
# At shorter intervals, the readings alone would use a noticeable share of a core.
SHORTEST_SAMPLE_SECONDS: Final = 0.01
NAME_LIMIT: Final = 128
# The server enforces the same limits.
TAGS_LIMIT: Final = 64
TAG_LIMIT: Final = 64
PHASES_LIMIT: Final = 256
CLASS_NAME_LIMIT: Final = 400
# Maximum size of the configuration as JSON. It is part of the run's announcement, whose size the server limits.
CONFIG_LIMIT_BYTES: Final = 64 * 1024
SECRET_FILE_LIMIT_BYTES: Final = 64 * 1024
# Names of processes that may launch several jobs one after another.
_SHELLS: Final = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "tcsh", "zsh"})
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a run. ``watch`` contains names of classes, never the classes themselves."""

    run_id: str
    # The server refuses a run that does not exist ("must"), or that exists already ("never").
    resume: str = "allow"
    # If empty, the server uses the token's project, or otherwise `DEFAULT_PROJECT`.
    project: str = ""
    # Whether the project is an argument; a variable then has no effect.
    project_is_argument: bool = False
    # If None, a readable name is derived from the run id.
    name: str | None = None
    unit: str = DEFAULT_UNIT
    total: int | None = None
    watch: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    server: str = DEFAULT_SERVER
    token: str | None = None
    # PEM file with certificates to trust in addition to the system's certificates.
    ca_file: Path | None = None
    mode: str = "online"
    quiet: bool = False
    directory: Path = Path(DEFAULT_DIRECTORY)
    # Maximum size of each process's spool.
    spool_limit_bytes: int = DEFAULT_SPOOL_LIMIT_BYTES
    max_overhead: float = DEFAULT_MAX_OVERHEAD
    # Maximum time for which a single measurement may block the program.
    max_pause_seconds: float = DEFAULT_MAX_PAUSE_SECONDS
    # Interval between background readings of resident memory; 0 turns them off.
    sample_seconds: float = DEFAULT_SAMPLE_SECONDS
    # Reset the kernel's high-water mark after each reading. Opt-in, because the program may use the mark itself.
    exact_peaks: bool = False
    # Keep the newest lines that the program prints and logs (`output_tail.py`). Opt-in, because the lines may contain
    # secrets.
    log_lines: bool = False
    # Once a leak is suspected, trace for one generation which source lines allocate memory (`allocation_tracing.py`).
    # Opt-in, because tracing slows the program down.
    allocations: bool = False
    # Find out what grows in worker processes (`worker_scan.py`). Opt-in, because it sends them a signal.
    scan_workers: bool = False
    # How many individual objects a census reports, and the minimum size of such an object.
    large_objects: int = LARGE_OBJECTS
    large_from_bytes: int = LARGE_OBJECTS_AT_LEAST_BYTES
    # Log a line to stderr every N generations; 0 turns it off.
    log_every: int = 0
    # Allow the server to request measurements (`run_requests.py`).
    requests: bool = True
    rank: int = 0
    world_size: int = 1
    # How often the launcher has restarted its workers (TORCHELASTIC_RESTART_COUNT).
    restarts: int = 0

    @property
    def run_directory(self) -> Path:
        return self.directory / self.run_id

    @property
    def url(self) -> str:
        return f"{self.server}/runs/{self.run_id}"


def resolve(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Return the settings that the arguments of ``init`` (None if not given) and the environment specify.

    Raises BadArgument with the name, the value and the source of an invalid setting.
    """
    env = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    for name, (variable, parse) in _SETTINGS.items():
        given, text = arguments.get(name), _text(env, variable)
        if given is not None:
            found[name] = parse(given, name, "argument")
        elif text is not None:
            found[name] = parse(text, variable, "environment")
    # Resolve the default only if needed, because the working directory may no longer exist.
    if "directory" not in found:
        found["directory"] = Path(DEFAULT_DIRECTORY).absolute()
    token = _token(*read_secret(env, "LEAKLINE_TOKEN"))
    called = {name: found[name] for name in ("project", "name") if found.get(name)}
    run_id = _run_id(env, found.get("world_size", 1), called, arguments)
    by_argument = arguments.get("project") is not None
    return Settings(run_id=run_id, token=token, project_is_argument=by_argument, **found)


def _text(environ: Mapping[str, str], variable: str) -> str | None:
    """Return the value of a variable, or None if the variable is empty or not set."""
    return environ.get(variable, "").strip() or None


def read_secret(environ: Mapping[str, str], variable: str) -> tuple[str, str | None]:
    """Return (name of the variable that provides the secret, secret or None).

    The secret is the value of ``variable`` or the content of the file named by ``<variable>_FILE``. Raises
    BadArgument, which names the file but never quotes its content.
    """
    value = environ.get(variable, "").strip() or None
    from_file = f"{variable}_FILE"
    path = environ.get(from_file, "").strip()
    if not path:
        return variable, value
    if value is not None:
        why = f"{variable} is also set; set only one of the two"
    else:
        text, why = _read_line(path)
        if text is not None:
            return from_file, text
    raise BadArgument(from_file, path, why, "environment")


def _read_line(path: str) -> tuple[str | None, str]:
    """Return (line, problem): the line of a one-line text file and an empty string, or None and an error message."""
    try:
        # Check the file type first, because opening a pipe would block until the pipe has a writer.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return None, "is not a regular file"
        with Path(path).open("rb") as file:
            content = file.read(SECRET_FILE_LIMIT_BYTES + 1)
        text = content.decode().strip()
    except OSError as error:
        return None, f"cannot be read ({error.strerror or error})"
    except UnicodeDecodeError:
        return None, "is not UTF-8 text"
    if len(content) > SECRET_FILE_LIMIT_BYTES:
        return None, f"is larger than {SECRET_FILE_LIMIT_BYTES // 1024} KiB"
    if not text:
        return None, "is empty; write the secret into the file"
    if not text.isprintable():
        return None, "must be one line of printable characters"
    return text, ""


def checked_name(value: object, name: str, source: str = "argument") -> str:
    """Return the stripped text if it is a printable name of 1 to 128 characters; otherwise raise BadArgument."""
    if not isinstance(value, str) or not value.strip():
        raise BadArgument(name, value, "must be a non-empty string", source)
    text = value.strip()
    if len(text) > NAME_LIMIT or not text.isprintable():
        raise BadArgument(name, value, f"must be at most {NAME_LIMIT} printable characters", source)
    return text


def _texts(most: int, longest: int) -> _Parse:
    def parse(value: object, name: str, source: str) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise BadArgument(name, value, "must be a list of strings", source)
        texts = tuple(dict.fromkeys(checked_name(item, name) for item in value))
        if len(texts) > most:
            raise BadArgument(
                name, f"<{len(texts)} strings>", f"must have at most {most} entries", source
            )
        for text in texts:
            if len(text) > longest:
                why = f"is too long: each entry must have at most {longest} characters"
                raise BadArgument(name, text, why, source)
        return texts

    return parse


def _watch(value: object, name: str, source: str) -> tuple[str, ...]:
    if isinstance(value, (str, type)) or not isinstance(value, Iterable):
        raise BadArgument(name, value, "must be a list of classes or class names", source)
    return tuple(dict.fromkeys(_class_name(checked_type(item, name)) for item in value))


def _class_name(target: type | str) -> str:
    """Return the class name as used in series: ``module.Class``, or ``list`` for a builtin class."""
    if isinstance(target, str):
        return target
    module = "" if target.__module__ == "builtins" else f"{target.__module__}."
    return module + target.__qualname__


def checked_type(value: object, name: str) -> type | str:
    """Return the value if it is a class or a class name with or without its module; otherwise raise BadArgument."""
    if isinstance(value, type):
        return value
    if isinstance(value, str) and len(value) > CLASS_NAME_LIMIT:
        why = f"must have at most {CLASS_NAME_LIMIT} characters"
        raise BadArgument(name, f"{value[:NAME_LIMIT]}...", why)
    if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")):
        return value
    raise BadArgument(name, value, "must be a class or the name of a class, such as 'agents.Agent'")


def _total(value: object, name: str, source: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(name, value, "must be a whole number above zero", source)
    if value > LARGEST_INTEGER:
        # Leave out the digits: they would not help, and Python refuses to print very long integers.
        raise BadArgument(name, f"<{value.bit_length()} bits>", "must be at most 2**53", source)
    return value


def _flag(value: object, name: str, source: str) -> bool:
    if source == "argument":
        if not isinstance(value, bool):
            raise BadArgument(name, value, "must be True or False", source)
        return value
    word = str(value).lower()
    if word not in ("0", "1", "true", "false", "yes", "no", "on", "off"):
        raise BadArgument(name, word, "must be 1 or 0", source)
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
        # Reject a login: it would be printed along with the address, and it is never sent.
        why = "must not contain a login; authenticate with LEAKLINE_TOKEN"
        raise BadArgument(name, f"{parts.scheme}://...@{parts.hostname}", why, source)
    return value.strip().rstrip("/")


def _token(variable: str, value: str | None) -> str | None:
    if value is not None and not (value.isascii() and value.isprintable()):
        # The token goes into an HTTP header. It is a secret, so no message repeats it.
        raise BadArgument(variable, "...", "must be printable ASCII", "environment")
    return value


def _ca_file(value: Any, name: str, source: str) -> Path:
    """Read the file now, so that an invalid file is reported at the start, not later as an unreachable server."""
    from .transport.http_connection import secure_context

    path = Path(value).absolute()
    try:
        secure_context(path)
    except OSError as error:
        why = f"cannot be read as PEM certificates ({error.strerror or error})"
        raise BadArgument(name, value, why, source) from error
    return path


def _directory(value: object, name: str, source: str) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise BadArgument(name, value, "must be the path of a folder", source)
    # Make the path absolute: the program may change its working directory, but the spool stays in place.
    return Path(os.fsdecode(value)).absolute()


def _spool_limit(value: object, name: str, source: str) -> int:
    limit, smallest = size_bytes(value, name, source), SMALLEST_SPOOL_LIMIT_BYTES
    if limit < smallest:
        raise BadArgument(name, value, f"must be at least {smallest // 1024} KiB", source)
    return limit


def _large_from(value: object, name: str, source: str) -> int:
    size = size_bytes(value, name, source)
    if size < SMALLEST_LARGE_OBJECT_BYTES:
        # Reject smaller sizes, because smaller objects are not tracked by name.
        raise BadArgument(name, value, "must be at least 1 MiB", source)
    return size


def _config(value: object, name: str, source: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        # Accept argparse.Namespace and similar objects, too.
        fields = getattr(value, "__dict__", None)
        if isinstance(value, type) or not isinstance(fields, dict):
            raise BadArgument(name, value, "must be a mapping of names to plain values", source)
        value = fields
    plain = plain_json(value)
    assert isinstance(plain, dict)
    return plain


def plain_json(value: Any, depth: int = 4) -> Any:
    """Return ``value`` as JSON of limited size. An object that JSON cannot represent is replaced by the name of its
    type, never by its contents.
    """
    return _Plain(CONFIG_LIMIT_BYTES).plain(value, depth)


class _Plain:
    """Converts one value to JSON of about ``room`` bytes. Anything beyond that size is dropped."""

    def __init__(self, room: int) -> None:
        self._room = room

    def plain(self, value: Any, depth: int) -> Any:
        if depth > 0 and isinstance(value, Mapping):
            return dict(self._pairs(value, depth - 1))
        if depth > 0 and isinstance(value, (list, tuple)):
            return list(self._items(value, depth - 1))
        scalar = _scalar(value)
        # The two extra bytes are for separators.
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
        # Python refuses to print very long integers.
        return value if value.bit_length() < 1024 else f"<{value.bit_length()} bits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return unicode_text(value[:1000])
    if isinstance(value, os.PathLike):
        return unicode_text(os.fsdecode(value)[:1000])
    return f"<{type(value).__name__}>"


def unicode_text(text: str) -> str:
    """Replace unpaired surrogates (from file names or truncated text) with "?", because they are not valid in JSON."""
    return text.encode("utf-8", "replace").decode()


def _resume(value: object, name: str, source: str) -> str:
    if isinstance(value, bool) or value == "auto":
        return "allow"
    return str(_one_of("allow", "must", "never", "auto")(value, name, source))


def _run_id(
    environ: Mapping[str, str],
    world_size: int,
    called: Mapping[str, str],
    arguments: Mapping[str, Any],
) -> str:
    given, name, source = arguments.get("id"), "id", "argument"
    if given is None:
        given, name, source = _text(environ, "LEAKLINE_RUN_ID"), "LEAKLINE_RUN_ID", "environment"
    if given is not None:
        if not isinstance(given, str) or not _RUN_ID.fullmatch(given):
            why = "must be 1 to 64 letters, digits, dots, dashes or underscores"
            raise BadArgument(name, given, why, source)
        return given
    key = _launch_key(environ, called) if world_size > 1 else None
    if key is not None:
        return "ranks-" + hashlib.sha256(key.encode()).hexdigest()[:16]
    resume = arguments.get("resume")
    if resume in ("must", "auto", True):
        # Unlike W&B, Leakline does not guess which earlier run is meant.
        raise BadArgument(
            "resume", resume, "needs the id of the run: pass id or set LEAKLINE_RUN_ID"
        )
    # Ids sort by time. The 40 random bits distinguish runs that start in the same millisecond.
    return f"{time.time_ns() // 1_000_000:011x}{os.urandom(5).hex()}"


def _launch_key(environ: Mapping[str, str], called: Mapping[str, str]) -> str | None:
    """Return a key that identifies a launch on all of its ranks, or None if no such key is known.

    The key is the rendezvous id or the batch job's id, or otherwise the master's address. If the entire launch is on
    this machine, consecutive launches use the same address, so the key also contains the launcher process. A shell may
    launch several jobs, so if the launcher is a shell, the key also contains the run's project and name. Otherwise the
    name is not part of the key, because each rank may compute its own name, for example from the time.
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
    names = f" {json.dumps(called)}" if called and _name_of(os.getppid()) in _SHELLS else ""
    return None if launcher is None else f"{address} {launcher}{names}"


def _is_on_one_machine(environ: Mapping[str, str], master: str | None) -> bool:
    here, everywhere = (
        _count(_text(environ, name) or default, name, "environment")
        for name, default in (("LOCAL_WORLD_SIZE", 0), ("WORLD_SIZE", 1))
    )
    if here:
        return here == everywhere
    return master in (None, "localhost", "::1") or str(master).startswith("127.")


def _launcher() -> str | None:
    """Return a string that identifies the parent process by its id and start time.

    Return None if the parent is init, which adopts the orphans of every launch.
    """
    parent = os.getppid()
    ticks = start_ticks(parent) if parent > 1 else ""
    return f"launcher {parent} {ticks}" if ticks else None


def _name_of(pid: int) -> str:
    """Return the name of a process, or an empty string if it is unknown."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat (proc(5)) after the process name, or an empty list if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The process name, in parentheses, may contain spaces.
    return stat.rpartition(")")[2].split()


def start_ticks(pid: int) -> str:
    """Return the start time (field 22 of /proc/PID/stat), which reveals a reused process id, or an empty string if
    unknown.
    """
    fields = stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


_Parse = Callable[[Any, str, str], Any]
# Maps each field of `Settings` to its environment variable (empty if the field is only an argument) and its parser.
_SETTINGS: Final[Mapping[str, tuple[str, _Parse]]] = {
    "project": ("LEAKLINE_PROJECT", checked_name),
    "name": ("LEAKLINE_RUN_NAME", checked_name),
    "resume": ("", _resume),
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
            "must be a fraction of wall time between 0 and 1, such as 0.01",
        ),
    ),
    "max_pause_seconds": (
        "LEAKLINE_MAX_PAUSE",
        _number(
            lambda seconds: 0 < seconds <= 60,
            "must be above 0 and at most 60 seconds, such as 0.05",
        ),
    ),
    "sample_seconds": (
        "LEAKLINE_SAMPLE_SECONDS",
        _number(
            lambda seconds: seconds == 0 or SHORTEST_SAMPLE_SECONDS <= seconds <= 3600,
            f"must be from {SHORTEST_SAMPLE_SECONDS} to 3600 seconds, or 0 for no readings between snapshots",
        ),
    ),
    "exact_peaks": ("LEAKLINE_EXACT_PEAKS", _flag),
    "log_lines": ("LEAKLINE_LOG_LINES", _flag),
    "allocations": ("LEAKLINE_ALLOCATIONS", _flag),
    "scan_workers": ("LEAKLINE_SCAN_WORKERS", _flag),
    "large_objects": ("LEAKLINE_LARGE_OBJECTS", _large_objects),
    "large_from_bytes": ("LEAKLINE_LARGE_FROM", _large_from),
    "log_every": ("LEAKLINE_LOG_EVERY", _count),
    "requests": ("LEAKLINE_REQUESTS", _flag),
    "rank": ("RANK", _count),
    "world_size": ("WORLD_SIZE", lambda value, name, source: max(1, _count(value, name, source))),
    "restarts": ("TORCHELASTIC_RESTART_COUNT", _count),
}
