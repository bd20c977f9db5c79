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
    # Keep the newest lines that the program prints and logs (`output.py`): they may hold anything, so only when asked.
    log_lines: bool = False
    # Trace which lines allocate, for a generation, once a leak is suspected (`allocations.py`): it slows the program.
    allocations: bool = False
    # Of how many single objects a census tells, and from which size on.
    large_objects: int = LARGE_OBJECTS
    large_from_bytes: int = LARGE_OBJECTS_AT_LEAST_BYTES
    # A line on stderr after every so many generations; 0: none.
    log_every: int = 0
    # Look when the server asks for it (`requests.py`).
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
    """Settings from the arguments of ``init`` (None: not given) and the environment.

    Raises BadArgument with the name, the value and where it came from.
    """
    env = _Environment(os.environ if environ is None else environ)
    rank, world_size = env.count("RANK", 0), max(1, env.count("WORLD_SIZE", 1))
    run_id = _run_id(env, world_size)
    server, server_source = env.choose(arguments, "server", "LEAKLINE_SERVER", DEFAULT_SERVER)
    mode, mode_source = env.choose(arguments, "mode", "LEAKLINE_MODE", "online")
    name, name_source = env.choose(arguments, "name", "LEAKLINE_RUN_NAME", None)
    project, project_source = env.choose(arguments, "project", "LEAKLINE_PROJECT", None)
    directory, directory_source = env.choose(
        arguments, "directory", "LEAKLINE_DIR", DEFAULT_DIRECTORY
    )
    return Settings(
        run_id=run_id,
        project="" if project is None else checked_name(project, "project", project_source),
        name=None if name is None else checked_name(name, "name", name_source),
        unit=_one_of(arguments.get("unit") or "generation", UNITS, "unit", "argument"),
        total=_total(arguments.get("total")),
        watch=_watch(arguments.get("watch")),
        phases=_names(arguments.get("phases"), "phases", PHASES_LIMIT),
        config=_config(arguments.get("config")),
        tags=_names(arguments.get("tags"), "tags", TAGS_LIMIT, TAG_LIMIT),
        server=_server(server, server_source),
        token=_token(*env.secret("LEAKLINE_TOKEN")),
        ca_file=_ca_file(env.get("LEAKLINE_CA_FILE")),
        mode=_one_of(mode, MODES, "mode", mode_source),
        quiet=_flag(env, arguments, "quiet", "LEAKLINE_QUIET"),
        directory=_directory(directory, directory_source),
        spool_limit_bytes=_spool_limit(env.get("LEAKLINE_SPOOL_LIMIT")),
        max_overhead=env.share("LEAKLINE_MAX_OVERHEAD", DEFAULT_MAX_OVERHEAD),
        max_pause_seconds=env.max_pause(),
        sample_seconds=env.sample_interval(),
        exact_peaks=_flag(env, arguments, "exact_peaks", "LEAKLINE_EXACT_PEAKS"),
        log_lines=_flag(env, arguments, "log_lines", "LEAKLINE_LOG_LINES"),
        allocations=_flag(env, arguments, "allocations", "LEAKLINE_ALLOCATIONS"),
        large_objects=env.large_objects(),
        large_from_bytes=_large_from(env.get("LEAKLINE_LARGE_FROM")),
        log_every=_log_every(env, arguments.get("log_every")),
        requests=env.flag("LEAKLINE_REQUESTS", "1"),
        rank=rank,
        world_size=world_size,
        restarts=env.count("TORCHELASTIC_RESTART_COUNT", 0),
    )


class _Environment:
    """Reads environment variables; an empty one counts as not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        return self._environ.get(name, "").strip() or None

    def secret(self, name: str) -> tuple[str, str | None]:
        return read_secret(self._environ, name)

    def choose(
        self, arguments: Mapping[str, Any], argument: str, variable: str, default: Any
    ) -> tuple[Any, str]:
        if arguments.get(argument) is not None:
            return arguments[argument], "argument"
        value = self.get(variable)
        return (default, "default") if value is None else (value, f"{variable} ->")

    def flag(self, name: str, default: str = "0") -> bool:
        value = (self.get(name) or default).lower()
        if value not in ("0", "1", "true", "false", "yes", "no", "on", "off"):
            raise BadArgument(name, value, "use 1 or 0", "environment")
        return value in ("1", "true", "yes", "on")

    def count(self, name: str, default: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        if not value.isdecimal():
            raise BadArgument(name, value, "must be a whole number, zero or more", "environment")
        return int(value)

    def share(self, name: str, default: float) -> float:
        why = "must be a share of wall time between 0 and 1, such as 0.01"
        return self._number(name, default, lambda share: 0 <= share <= 1, why)

    def max_pause(self) -> float:
        why = "must be seconds above 0 and up to 60, such as 0.05"
        name, default = "LEAKLINE_MAX_PAUSE", DEFAULT_MAX_PAUSE_SECONDS
        return self._number(name, default, lambda seconds: 0 < seconds <= 60, why)

    def sample_interval(self) -> float:
        shortest = SHORTEST_SAMPLE_SECONDS
        why = f"must be seconds from {shortest} to 3600, or 0 for no readings between snapshots"
        name, default = "LEAKLINE_SAMPLE_SECONDS", DEFAULT_SAMPLE_SECONDS
        return self._number(
            name, default, lambda seconds: seconds == 0 or shortest <= seconds <= 3600, why
        )

    def large_objects(self) -> int:
        name, found = "LEAKLINE_LARGE_OBJECTS", self.count("LEAKLINE_LARGE_OBJECTS", LARGE_OBJECTS)
        if found > LARGE_OBJECTS_LIMIT:
            raise BadArgument(name, found, f"must be at most {LARGE_OBJECTS_LIMIT}", "environment")
        return found

    def _number(self, name: str, default: float, fits: Callable[[float], bool], why: str) -> float:
        value = self.get(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not fits(number):
            raise BadArgument(name, value, why, "environment")
        return number


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


def _flag(env: _Environment, arguments: Mapping[str, Any], name: str, variable: str) -> bool:
    given = arguments.get(name)
    return env.flag(variable) if given is None else _boolean(given, name)


def checked_name(value: object, name: str, source: str = "argument") -> str:
    """A printable name of 1 to 128 characters."""
    if not isinstance(value, str) or not value.strip():
        raise BadArgument(name, value, "must be a text that is not empty", source)
    text = value.strip()
    if len(text) > NAME_LIMIT or not text.isprintable():
        raise BadArgument(name, value, f"must be at most {NAME_LIMIT} printable characters", source)
    return text


def _names(value: object, name: str, most: int, longest: int = NAME_LIMIT) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise BadArgument(name, value, "must be a list of texts")
    names = tuple(dict.fromkeys(checked_name(item, name) for item in value))
    if len(names) > most:
        raise BadArgument(name, f"<{len(names)} texts>", f"must be at most {most}")
    for text in names:
        if len(text) > longest:
            raise BadArgument(name, text, f"must be at most {longest} characters each")
    return names


def _watch(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, type)) or not isinstance(value, Iterable):
        raise BadArgument("watch", value, "must be a list of classes or class names")
    return tuple(dict.fromkeys(_class_name(checked_type(item, "watch")) for item in value))


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


def _total(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument("total", value, "must be a whole number above zero")
    if value > LARGEST_INTEGER:
        # The digits would say nothing, and Python refuses to write very many.
        raise BadArgument("total", f"<{value.bit_length()} bits>", "must be at most 2**53")
    return value


def _boolean(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadArgument(name, value, "must be True or False")
    return value


def _one_of(value: object, allowed: tuple[str, ...], name: str, source: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise BadArgument(name, value, f"must be one of {', '.join(allowed)}", source)
    return value


def _server(value: object, source: str) -> str:
    why = "must be an address such as http://127.0.0.1:8765"
    if not isinstance(value, str) or any(c.isspace() for c in value.strip()):
        raise BadArgument("server", value, why, source)
    try:
        parts = urlsplit(value.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise BadArgument("server", value, why, source)
    if "@" in parts.netloc:
        # It would be printed with the address; and it is sent to nobody.
        why = "must not hold a login; LEAKLINE_TOKEN is sent with every request"
        raise BadArgument("server", f"{parts.scheme}://...@{parts.hostname}", why, source)
    return value.strip().rstrip("/")


def _token(variable: str, value: str | None) -> str | None:
    if value is not None and not (value.isascii() and value.isprintable()):
        # It travels in a header; and it is a secret, which no message repeats.
        raise BadArgument(variable, "...", "must be printable ASCII", "environment")
    return value


def _ca_file(value: str | None) -> Path | None:
    """Read once here, so that a wrong one is named at the start and not as a server that does not answer."""
    if value is None:
        return None
    from .connection import secure_context

    path = Path(value).absolute()
    try:
        secure_context(path)
    except OSError as error:
        why = f"cannot be read as certificates in PEM ({error.strerror or error})"
        raise BadArgument("LEAKLINE_CA_FILE", value, why, "environment") from error
    return path


def _directory(value: object, source: str) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise BadArgument("directory", value, "must be the path of a folder", source)
    # The program may change its working folder later; the spool stays where it was.
    return Path(os.fsdecode(value)).absolute()


def _spool_limit(value: str | None) -> int:
    if value is None:
        return DEFAULT_SPOOL_LIMIT_BYTES
    name, smallest = "LEAKLINE_SPOOL_LIMIT", SMALLEST_SPOOL_LIMIT_BYTES
    limit = size_bytes(value, name, "environment")
    if limit < smallest:
        raise BadArgument(name, value, f"must be at least {smallest // 1024} KiB", "environment")
    return limit


def _large_from(value: str | None) -> int:
    if value is None:
        return LARGE_OBJECTS_AT_LEAST_BYTES
    size = size_bytes(value, "LEAKLINE_LARGE_FROM", "environment")
    if size < SMALLEST_LARGE_OBJECT_BYTES:
        # What is smaller is not remembered by name.
        raise BadArgument("LEAKLINE_LARGE_FROM", value, "must be at least 1 MiB", "environment")
    return size


def _log_every(env: _Environment, given: object) -> int:
    if given is None:
        return env.count("LEAKLINE_LOG_EVERY", 0)
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise BadArgument("log_every", given, "must be a whole number, zero or more")
    return given


def _config(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        # argparse.Namespace and the like
        fields = getattr(value, "__dict__", None)
        if isinstance(value, type) or not isinstance(fields, dict):
            raise BadArgument("config", value, "must be a mapping of names to plain values")
        value = fields
    plain = plain_json(value)
    assert isinstance(plain, dict)
    return plain


def plain_json(value: Any, depth: int = 4) -> Any:
    """``value`` as bounded JSON: what has no place in JSON is told by its type, never by its contents."""
    return _Plain(CONFIG_LIMIT_BYTES).told(value, depth)


class _Plain:
    """One value as JSON of about ``room`` bytes; what comes after them is left out."""

    def __init__(self, room: int) -> None:
        self._room = room

    def told(self, value: Any, depth: int) -> Any:
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
            yield name, self.told(value, depth)

    def _items(self, items: Iterable[Any], depth: int) -> Iterator[Any]:
        for item in islice(items, 200):
            if self._room < 0:
                return
            self._room -= 2
            yield self.told(item, depth)


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


def _run_id(env: _Environment, world_size: int) -> str:
    given = env.get("LEAKLINE_RUN_ID")
    if given is not None:
        if not _RUN_ID.fullmatch(given):
            why = "must be 1 to 64 letters, digits, dots, dashes or underscores"
            raise BadArgument("LEAKLINE_RUN_ID", given, why, "environment")
        return given
    key = _launch_key(env) if world_size > 1 else None
    if key is not None:
        return "ranks-" + hashlib.sha256(key.encode()).hexdigest()[:16]
    # Sorts by time; 40 random bits keep two runs of one millisecond apart.
    return f"{time.time_ns() // 1_000_000:011x}{os.urandom(5).hex()}"


def _launch_key(env: _Environment) -> str | None:
    """What all ranks of one launch share and two launches do not; None when nothing of the kind is known.

    That is the id of the rendezvous or of the batch job. Without either, the master's address; but when the whole
    launch is on this machine, launch after launch has the same one, so the launcher tells them apart.
    """
    launch = env.get("TORCHELASTIC_RUN_ID")
    if launch is not None and launch != "none":
        return f"torchelastic {launch}"
    job = env.get("SLURM_JOB_ID")
    if job is not None:
        return f"slurm {job} {env.get('SLURM_STEP_ID')}"
    master = env.get("MASTER_ADDR")
    address = None if master is None else f"master {master}:{env.get('MASTER_PORT')}"
    if not _is_on_one_machine(env, master):
        return address
    launcher = _launcher()
    return None if launcher is None else f"{address} {launcher}"


def _is_on_one_machine(env: _Environment, master: str | None) -> bool:
    here, everywhere = env.count("LOCAL_WORLD_SIZE", 0), env.count("WORLD_SIZE", 1)
    if here:
        return here == everywhere
    return master in (None, "localhost", "::1") or str(master).startswith("127.")


def _launcher() -> str | None:
    """The parent process and when it started. Not init: it adopts what has lost its parent, of every launch."""
    parent = os.getppid()
    ticks = start_ticks(parent) if parent > 1 else ""
    return f"launcher {parent} {ticks}" if ticks else None


def start_ticks(pid: int) -> str:
    """Field 22 of /proc/PID/stat, so that a reused process id is not the same launcher; empty where unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
