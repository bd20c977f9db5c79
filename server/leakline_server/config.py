"""The server's settings, read from the environment into a frozen Config. All invalid values are reported at startup."""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from leakline.analysis.findings.verdict_summary import DEFAULTS as PRIORITIES
from leakline.analysis.findings.verdict_summary import Priorities
from leakline.errors import BadArgument, LeaklineError
from leakline.settings import read_secret
from leakline.text_format import size_bytes

from .alerts.formats import FORMATS
from .alerts.rules.rule_fields import read_rules
from .alerts.sending.address_check import parse as parse_webhook_url
from .alerts.sending.signing import check_secret
from .limits import BYTES_PER_DAY, MAX_INTEGER, RUNS_PER_DAY
from .logs import FORMATS as LOG_FORMATS
from .logs import LEVELS, Format, Level
from .security.credentials import check_password
from .store.alerts.assertions import Terms
from .store.engine import Synchronous, check_url
from .store.maintenance.disk_space import missing_file
from .store.maintenance.retention_policy import FOREVER, Limits, PerProject

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8765
# The database has its own directory, so that deleting the client's recordings does not delete it.
DEFAULT_DATABASE_URL: Final = "sqlite:///.leakline-server/leakline.db"
# The default path in older versions, next to the client's recordings.
FORMER_DATABASE_URL: Final = "sqlite:///.leakline/leakline.db"
# Each URL may occupy a delivery thread.
MAX_APPRISE_URLS: Final = 32
UNLIMITED: Final = "unlimited"
MAX_DAYS: Final = 36_500.0
_RUNS_PER_DAY: Final = PerProject(RUNS_PER_DAY)
_BYTES_PER_DAY: Final = PerProject(BYTES_PER_DAY)
# Similarity ratio above which an unknown variable is reported as a likely typo.
NEARLY: Final = 0.92


log = logging.getLogger("leakline")

NOTHING_TYPED: Final[Mapping[str, str]] = {}


class WrongSettings(LeaklineError):
    """Raised for invalid settings; the message lists every problem."""

    exit_status = 2

    def __init__(self, problems: list[str]) -> None:
        several = [f"{len(problems)} settings are invalid:", *problems]
        super().__init__(problems[0] if len(problems) == 1 else "\n  ".join(several))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Config:
    database_url: str = DEFAULT_DATABASE_URL
    synchronous: Synchronous = "full"
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    insecure: bool = False
    # Require authentication on loopback too, for servers behind a proxy that others can reach.
    login: bool = False
    admin_password: str | None = field(default=None, repr=False)
    public_url: str | None = None
    # Proxies whose headers for the client address and scheme are trusted; empty by default.
    trusted_proxies: tuple[Network, ...] = ()
    webhook_url: str | None = None
    webhook_secret: str | None = None
    webhook_format: str = "standard"
    webhook_allow: tuple[Network, ...] = ()
    apprise_urls: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    # Rules from the LEAKLINE_RULES file.
    rules: tuple[Terms, ...] = ()
    # The growth at which a finding becomes major or critical.
    priorities: Priorities = PRIORITIES
    # How long runs are kept, how long they are kept at full resolution, and how many bytes they may use; unlimited by
    # default.
    keep_days: PerProject = FOREVER
    thin_after_days: PerProject = FOREVER
    keep_bytes: PerProject = FOREVER
    # Daily quotas per project.
    runs_per_day: PerProject = _RUNS_PER_DAY
    bytes_per_day: PerProject = _BYTES_PER_DAY
    # A run without data for this long is marked silent: three times the longest interval at which a live client sends.
    silent_after_seconds: float = 60.0
    log_format: Format = "text"
    log_level: Level = "warning"
    # Whether the database URL was set explicitly, so that no default path applies.
    names_database: bool = field(default=False, compare=False)

    @property
    def limits(self) -> Limits:
        return Limits(self.keep_days, self.thin_after_days, self.keep_bytes)

    @property
    def asks_who_it_is(self) -> bool:
        """True if requests must be authenticated by a token or a session."""
        wanted = self.login or self.admin_password is not None
        return not self.insecure and (wanted or not is_loopback(self.host))

    @property
    def takes_all_viewers_for_one(self) -> bool:
        """True if authentication is on and the public URL is https, but no proxy is trusted.

        In that case all viewers share the proxy's address, so the sign-in rate limiter cannot distinguish them.
        """
        https = (self.public_url or "").startswith("https://")
        return https and self.asks_who_it_is and not self.trusted_proxies

    @property
    def asks_nobody_of_the_public(self) -> bool:
        """True if the public URL is not on loopback, authentication is off, and LEAKLINE_INSECURE is not set."""
        host = urlsplit(self.public_url or "").hostname
        return (
            host is not None
            and not is_loopback(host)
            and not (self.asks_who_it_is or self.insecure)
        )

    @property
    def address(self) -> str:
        """The address for links: the public URL, or the listening address with the host name instead of a wildcard."""
        return self.listening_address if self.public_url is None else self.public_url

    @property
    def listening_address(self) -> str:
        host = socket.gethostname() if self.host in _EVERY_ADDRESS else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}"

    @property
    def advice_to_move(self) -> str | None:
        """The warning to show if the database is at its former default path, otherwise None."""
        if self.database_url != FORMER_DATABASE_URL or self.names_database:
            return None
        return (
            "the database .leakline/leakline.db is stored with the client's recordings and is lost if .leakline is "
            "deleted: stop the server and move leakline.db* to .leakline-server"
        )


# Wildcard addresses: valid for listening, but not in a link.
_EVERY_ADDRESS: Final = ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def option_of(variable: str) -> str:
    """Return the command-line option that corresponds to an environment variable."""
    return "--" + variable.removeprefix("LEAKLINE_").lower().replace("_", "-")


def from_environment(
    environment: Mapping[str, str] = os.environ, typed: Mapping[str, str] = NOTHING_TYPED
) -> Config:
    """Read the settings; an unset or empty variable means the default.

    ``typed`` maps variables to the options that set them. A secret may be in a file: the variable with the suffix
    ``_FILE`` contains its path. Logs a warning if the database is at its former default path. Raises WrongSettings,
    which lists every invalid value.
    """
    found = _read(environment, typed)
    if found.advice_to_move is not None:
        log.warning(found.advice_to_move)
    return found


def _read(environment: Mapping[str, str], typed: Mapping[str, str]) -> Config:
    problems: list[str] = []
    found: dict[str, Any] = {}
    for variable, (name, parse) in _VARIABLES.items():
        given, text = variable, environment.get(variable, "").strip()
        if variable in SECRETS and variable not in typed:
            try:
                given, secret = read_secret(environment, variable)
            except BadArgument as error:
                problems.append(str(error))
                continue
            text = secret or ""
        if text:
            try:
                found[name] = parse(text)
            except ValueError as error:
                source = "argument" if variable in typed else "environment"
                called = typed.get(variable, given)
                shown = called if variable in SECRETS else f"{called}={text!r}"
                problems.append(f"{source} {shown}: {error}")
    if "webhook_url" in found and not environment.get("LEAKLINE_WEBHOOK_FORMAT", "").strip():
        # Only servers with this webhook need the module.
        from .alerts.sending.send_message import format_of

        try:
            found["webhook_format"], _ = format_of(found["webhook_url"])
        except ValueError as error:
            problems.append(f"environment LEAKLINE_WEBHOOK_URL: {error}")
    if found.get("insecure") and found.get("login"):
        problems.append(
            "environment LEAKLINE_LOGIN requires sign-in and LEAKLINE_INSECURE turns it off: set only one of them"
        )
    if found.get("insecure") and found.get("admin_password") is not None:
        problems.append(
            "environment LEAKLINE_ADMIN_PASSWORD requires sign-in and LEAKLINE_INSECURE turns it off: set only one of "
            "them"
        )
    if problems:
        # A setting that seems to be missing may be misspelled, so misspelled names are reported as well.
        raise WrongSettings(problems + misspelt(environment))
    places = DEFAULT_DATABASE_URL, FORMER_DATABASE_URL
    found["names_database"] = "database_url" in found
    if not found["names_database"]:
        found["database_url"] = next((url for url in places if not missing_file(url)), places[0])
    return Config(**found)


def from_arguments(
    environment: Mapping[str, str], host: str | None, port: str | None, database_url: str | None
) -> Config:
    """Return the settings, with the options of `serve` taking precedence. Raises WrongSettings.

    Logs no warnings, because `serve` logs its own.
    """
    given = {"LEAKLINE_HOST": host, "LEAKLINE_PORT": port, "LEAKLINE_DATABASE_URL": database_url}
    said = {variable: text for variable, text in given.items() if text is not None}
    typed = {variable: option_of(variable) for variable in said}
    return _read({**environment, **said}, typed)


def misspelt(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return a warning for each variable that looks like a misspelled setting."""
    said = []
    known = {*VARIABLES, *(f"{variable}_FILE" for variable in SECRETS)}
    for name in sorted(environment):
        near = get_close_matches(name, known, 1, NEARLY)
        if near and name not in known and name.startswith("LEAKLINE_"):
            said.append(f"{name} is not a setting and has no effect; did you mean {near[0]}?")
    return said


def _database_url(text: str) -> str:
    check_url(text)
    return text


def _host(text: str) -> str:
    if not text.strip("[]") or any(c in "/@ " or not c.isprintable() for c in text):
        raise ValueError("must be a host name or address to listen on, such as 127.0.0.1")
    return text


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


def _webhook_format(text: str) -> str:
    if text.lower() not in FORMATS:
        raise ValueError(
            f"must be one of {', '.join(FORMATS)}; leave it unset for a Discord or Teams address, and use "
            "LEAKLINE_APPRISE_URLS for other services"
        )
    return text.lower()


def _http_url(text: str) -> str:
    wrong = ValueError("must be a URL such as http://host:port")
    try:
        parts = urlsplit(text)
        # `port` raises ValueError for a bad port only when it is read.
        _ = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise wrong
    return text.rstrip("/") if parts.path in ("", "/") and not parts.query else text


def _webhook_url(text: str) -> str:
    parse_webhook_url(text)
    return text


def _rules(text: str) -> tuple[Terms, ...]:
    return read_rules(Path(text))


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(part) for part in _list(text))


def _proxies(text: str) -> tuple[Network, ...]:
    if text == "*":
        return _networks("0.0.0.0/0,::/0")
    try:
        return _networks(text)
    except ValueError:
        raise ValueError(
            "must be addresses or networks of proxies, such as 127.0.0.1,10.0.0.0/8, or * if only proxies can reach "
            "the server"
        ) from None


def _apprise_urls(text: str) -> tuple[str, ...]:
    found = _list(text)
    if len(found) > MAX_APPRISE_URLS:
        raise ValueError(f"must contain at most {MAX_APPRISE_URLS} URLs")
    if any("://" not in url for url in found):
        raise ValueError("must be apprise URLs such as mailto://…, separated by commas")
    return found


def _per_project(
    number: Callable[[str], float], without: str = "forever", default: float | None = None
) -> Callable[[str], PerProject]:
    """Return a parser for ``30,erl-trading=90``: a value for all projects, and other values for named projects.

    ``without`` is the word that means no limit.
    """
    others = default

    def parse(text: str) -> PerProject:
        default = others
        projects: dict[str, float | None] = {}
        for part in _list(text):
            name, named, value = part.rpartition("=")
            if named and not name.strip():
                raise ValueError(
                    f"must name a project before =, for example project={value.strip()}"
                )
            found = None if value.strip() == without else number(value.strip())
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
        raise ValueError(
            "must be a number of days above 0 such as 30, or forever, or 30,project=90"
        )
    return days


def _number_of_runs(text: str) -> float:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= MAX_INTEGER:
        raise ValueError("must be a number such as 1000, or unlimited, or 1000,project=5000")
    return int(text)


def _size(without: str = "forever") -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            size = size_bytes(text, "size")
        except BadArgument:
            size = 0
        if size == 0:
            raise ValueError(
                f"must be a size such as 50 GiB, or {without}, or 50 GiB,project=200 GiB"
            )
        return size

    return parse


def _priorities(text: str) -> Priorities:
    """Parse ``major=1 GB,critical=5 GB,share=10 %,hours=24``; a missing key keeps its default."""
    found: dict[str, float] = {}
    for part in _list(text):
        name, _, size = (each.strip() for each in part.partition("="))
        if name in ("share", "hours"):
            found[name] = _share(size) if name == "share" else _positive(size)
            continue
        if name not in ("major", "critical"):
            raise ValueError(
                f"must use the keys major, critical, share and hours, for example {_PRIORITIES_EXAMPLE}"
            )
        try:
            found[f"{name}_bytes"] = size_bytes(size, "size")
        except BadArgument:
            raise ValueError(
                f"must give sizes for major and critical, for example {_PRIORITIES_EXAMPLE}"
            ) from None
    limits = replace(PRIORITIES, **found)
    if not 0 < limits.major_bytes <= limits.critical_bytes:
        raise ValueError("must set major above 0, and critical to at least major")
    return limits


def _share(text: str) -> float:
    """Parse ``10 %`` or ``0.1``."""
    number = _positive(text.removesuffix("%").strip())
    share = number / 100 if text.endswith("%") else number
    if share > 1:
        raise ValueError("must set share to at most 100 %, for example share=10 %")
    return share


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ValueError(
            f"must set share and hours to numbers above 0, for example {_PRIORITIES_EXAMPLE}"
        )
    return number


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _origins(text: str) -> tuple[str, ...]:
    return tuple(_origin(part) for part in _list(text))


def _origin(text: str) -> str:
    """Normalize an origin to the form that browsers send: lower case, no trailing slash, no default port."""
    if text in ("*", "null"):
        return text
    wrong = ValueError(f"{text} must be an origin such as http://localhost:8000, without a path")
    try:
        parts = urlsplit(text.lower())
        port = parts.port
    except ValueError:
        raise wrong from None
    if not parts.hostname or "@" in parts.netloc:
        raise wrong
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise wrong
    place = parts.netloc
    if port is None or port == _PORTS.get(parts.scheme):
        place = place.removesuffix(f":{port or ''}")
    return f"{parts.scheme}://{place}"


# Values that messages must not repeat: a database URL contains a password, and chat services put a secret in the path
# of a webhook. Each value may be in a file instead.
SECRETS: Final = frozenset(
    {
        "LEAKLINE_DATABASE_URL",
        "LEAKLINE_WEBHOOK_URL",
        "LEAKLINE_WEBHOOK_SECRET",
        "LEAKLINE_APPRISE_URLS",
        "LEAKLINE_ADMIN_PASSWORD",
    }
)

_PORTS: Final = {"http": 80, "https": 443}
_PRIORITIES_EXAMPLE: Final = "major=1 GB,critical=5 GB,share=10 %,hours=24"
_VARIABLES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "LEAKLINE_DATABASE_URL": ("database_url", _database_url),
    "LEAKLINE_SYNCHRONOUS": ("synchronous", _choice("full", "normal")),
    "LEAKLINE_HOST": ("host", _host),
    "LEAKLINE_PORT": ("port", _port),
    "LEAKLINE_INSECURE": ("insecure", _flag),
    "LEAKLINE_LOGIN": ("login", _flag),
    "LEAKLINE_ADMIN_PASSWORD": ("admin_password", check_password),
    "LEAKLINE_PUBLIC_URL": ("public_url", _http_url),
    "LEAKLINE_TRUSTED_PROXIES": ("trusted_proxies", _proxies),
    "LEAKLINE_WEBHOOK_URL": ("webhook_url", _webhook_url),
    "LEAKLINE_WEBHOOK_SECRET": ("webhook_secret", check_secret),
    "LEAKLINE_WEBHOOK_FORMAT": ("webhook_format", _webhook_format),
    "LEAKLINE_WEBHOOK_ALLOW": ("webhook_allow", _networks),
    "LEAKLINE_APPRISE_URLS": ("apprise_urls", _apprise_urls),
    "LEAKLINE_ALLOWED_ORIGINS": ("allowed_origins", _origins),
    "LEAKLINE_RULES": ("rules", _rules),
    "LEAKLINE_PRIORITIES": ("priorities", _priorities),
    "LEAKLINE_KEEP_DAYS": ("keep_days", _per_project(_days)),
    "LEAKLINE_THIN_AFTER_DAYS": ("thin_after_days", _per_project(_days)),
    "LEAKLINE_KEEP_BYTES": ("keep_bytes", _per_project(_size())),
    "LEAKLINE_RUNS_PER_DAY": (
        "runs_per_day",
        _per_project(_number_of_runs, UNLIMITED, RUNS_PER_DAY),
    ),
    "LEAKLINE_BYTES_PER_DAY": (
        "bytes_per_day",
        _per_project(_size(UNLIMITED), UNLIMITED, BYTES_PER_DAY),
    ),
    "LEAKLINE_LOG_FORMAT": ("log_format", _choice(*LOG_FORMATS)),
    "LEAKLINE_LOG_LEVEL": ("log_level", _choice(*LEVELS)),
}

# Variable -> field of Config.
VARIABLES: Final[Mapping[str, str]] = {variable: name for variable, (name, _) in _VARIABLES.items()}
