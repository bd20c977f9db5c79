"""The server's settings: environment in, one frozen Config out. Every wrong value is told at the start."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from leakline.errors import BadArgument, LeaklineError
from leakline.sizes import size_bytes

from .alerts.address import parse as parse_webhook_url
from .alerts.formats import FORMATS
from .alerts.rules_file import read_rules
from .alerts.signing import check_secret
from .store.engine import Synchronous
from .store.retention import FOREVER, Limits, PerProject
from .store.rules import Terms

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Source = Literal["environment", "command line"]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8765
DEFAULT_DATABASE_URL: Final = "sqlite:///.leakline/leakline.db"
# Each is sent to by a thread of its own.
MAX_APPRISE_URLS: Final = 32
MAX_DAYS: Final = 36_500.0


class WrongSettings(LeaklineError):
    """Carries one sentence for each wrong variable."""

    exit_status = 2

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Config:
    database_url: str = DEFAULT_DATABASE_URL
    synchronous: Synchronous = "full"
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    insecure: bool = False
    public_url: str | None = None
    webhook_url: str | None = None
    webhook_secret: str | None = None
    webhook_format: str = "standard"
    webhook_allow: tuple[Network, ...] = ()
    apprise_urls: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    # Those of the file; none is there without it.
    rules: tuple[Terms, ...] = ()
    # How long runs are kept, and whole; without end by themselves.
    keep_days: PerProject = FOREVER
    thin_after_days: PerProject = FOREVER
    keep_bytes: PerProject = FOREVER
    # A run that says nothing for this long is marked silent: three times the longest interval of a live client.
    silent_after_seconds: float = 60.0
    # Field -> where its value was given, of those that were.
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False)

    @property
    def limits(self) -> Limits:
        return Limits(self.keep_days, self.thin_after_days, self.keep_bytes)

    @property
    def address(self) -> str:
        """Where people find the pages: the public address, else the one listened on."""
        if self.public_url is not None:
            return self.public_url
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def from_environment(environment: Mapping[str, str] = os.environ) -> Config:
    """Read the settings; unset and empty mean the default. Raises WrongSettings with every wrong value."""
    problems: list[str] = []
    found: dict[str, Any] = {}
    for variable, (name, parse) in _VARIABLES.items():
        text = environment.get(variable, "").strip()
        if text:
            try:
                found[name] = parse(text)
            except ValueError as error:
                shown = variable if variable in _SECRET else f"{variable}={text!r}"
                problems.append(f"environment {shown}: {error}")
    if problems:
        raise WrongSettings(problems)
    return Config(**found, sources=dict.fromkeys(found, "environment"))


def from_arguments(
    environment: Mapping[str, str], host: str | None, port: str | None, database_url: str | None
) -> Config:
    """The settings with what the command line says on top. Raises WrongSettings."""
    given = {"LEAKLINE_HOST": host, "LEAKLINE_PORT": port, "LEAKLINE_DATABASE_URL": database_url}
    said = {variable: text for variable, text in given.items() if text is not None}
    made = from_environment({**environment, **said})
    told = {VARIABLES[variable] for variable in said}
    sources: dict[str, Source] = {
        name: "command line" if name in told else source for name, source in made.sources.items()
    }
    return replace(made, sources=sources)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise ValueError("must be a port number from 0 to 65535")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "true", "false", "yes", "no"):
        raise ValueError("must be 1 or 0")
    return text.lower() in ("1", "true", "yes")


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text.lower()

    return parse


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address like http://host:port")
    return text.rstrip("/") if parts.path in ("", "/") and not parts.query else text


def _webhook_url(text: str) -> str:
    parse_webhook_url(text)
    return text


def _rules(text: str) -> tuple[Terms, ...]:
    return read_rules(Path(text))


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(part) for part in _list(text))


def _apprise_urls(text: str) -> tuple[str, ...]:
    found = _list(text)
    if len(found) > MAX_APPRISE_URLS:
        raise ValueError(f"must not name more than {MAX_APPRISE_URLS} addresses")
    if any("://" not in url for url in found):
        raise ValueError("must be addresses of apprise, such as mailto://…, separated by commas")
    return found


def _per_project(number: Callable[[str], float]) -> Callable[[str], PerProject]:
    """``30,erl-trading=90``: one for all projects, and others by name; ``forever`` is without end."""

    def parse(text: str) -> PerProject:
        default: float | None = None
        projects: dict[str, float | None] = {}
        for part in _list(text):
            name, named, value = part.rpartition("=")
            found = None if value.strip() == "forever" else number(value.strip())
            if named:
                projects[name.strip()] = found
            else:
                default = found
        return PerProject(default, projects)

    return parse


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= MAX_DAYS:
        raise ValueError("must be days above 0 such as 30, or forever, or 30,project=90")
    return days


def _size(text: str) -> float:
    try:
        size = size_bytes(text, "size")
    except BadArgument:
        size = 0
    if size == 0:
        raise ValueError("must be a size such as 50 GiB, or forever, or 50 GiB,project=200 GiB")
    return size


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


# Values that must not be repeated in a message; chat services put a secret into the path of their webhooks.
_SECRET: Final = frozenset(
    {"LEAKLINE_WEBHOOK_URL", "LEAKLINE_WEBHOOK_SECRET", "LEAKLINE_APPRISE_URLS"}
)

_VARIABLES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "LEAKLINE_DATABASE_URL": ("database_url", str),
    "LEAKLINE_SYNCHRONOUS": ("synchronous", _choice("full", "normal")),
    "LEAKLINE_HOST": ("host", str),
    "LEAKLINE_PORT": ("port", _port),
    "LEAKLINE_INSECURE": ("insecure", _flag),
    "LEAKLINE_PUBLIC_URL": ("public_url", _http_url),
    "LEAKLINE_WEBHOOK_URL": ("webhook_url", _webhook_url),
    "LEAKLINE_WEBHOOK_SECRET": ("webhook_secret", check_secret),
    "LEAKLINE_WEBHOOK_FORMAT": ("webhook_format", _choice(*FORMATS)),
    "LEAKLINE_WEBHOOK_ALLOW": ("webhook_allow", _networks),
    "LEAKLINE_APPRISE_URLS": ("apprise_urls", _apprise_urls),
    "LEAKLINE_ALLOWED_ORIGINS": ("allowed_origins", _list),
    "LEAKLINE_RULES": ("rules", _rules),
    "LEAKLINE_KEEP_DAYS": ("keep_days", _per_project(_days)),
    "LEAKLINE_THIN_AFTER_DAYS": ("thin_after_days", _per_project(_days)),
    "LEAKLINE_KEEP_BYTES": ("keep_bytes", _per_project(_size)),
}

# Variable -> the field of Config that it sets.
VARIABLES: Final[Mapping[str, str]] = {variable: name for variable, (name, _) in _VARIABLES.items()}
