"""The settings of a server as they are in force: what each is, where it came from, and what protects it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from leakline.analysis.priority import Priorities
from leakline.text_format import count_of, plural

from ..config import VARIABLES, Config, is_loopback
from ..figures import RetainerFigures
from ..store.retention import PerProject
from . import formats
from .contexts import Section
from .tables import Field, code, rated, table

FOR_EVER: Final = "for ever"
HIDDEN: Final = "set, not shown"


def answers_to_any_name(config: Config) -> bool:
    return config.insecure or not is_loopback(config.host)


def retention(config: Config, done: RetainerFigures) -> Section:
    how = (
        "Nothing goes unless one of these says so, and never a run that is live or tagged keep or baseline. Set them "
        'where the server is started, and start it again: LEAKLINE_KEEP_DAYS="30,papers=forever" leakline serve keeps '
        "the project papers for ever and others for 30 days."
    )
    note = (
        f"Since the start: {count_of(done.removed_runs, 'run')} removed, "
        f"{count_of(done.thinned_snapshots, 'snapshot')} left out of old runs."
    )
    rows = [_row(config, variable) for variable in _RETENTION]
    shown = table(_HEADS, rows, tall=False)
    return Section("retention", "What is kept", how, table=shown, note=note)


def access(config: Config) -> Section:
    how = (
        "Everybody shows a token or signs in: who reads reads every run, and administrators change rules, webhooks, "
        "tokens and runs."
        if config.asks_who_it_is
        else "The server is open to whoever reaches it: they read every run, and may change rules, webhooks and runs. "
        "What protects it now is below. It asks who people are once it listens beyond this machine, or with "
        "LEAKLINE_LOGIN=1."
    )
    rows = (_login(config), _listens(config), _names(config), _origins(config), _webhooks(config))
    shown = table(("what", "now", "means"), rows, tall=False)
    return Section("access", "Who may do what", how, table=shown)


def _login(config: Config) -> Sequence[Field]:
    if config.asks_who_it_is:
        means = (
            "A token is sent with each request, or a person has signed in; a session lasts a week."
        )
        return "login", rated("asked for", "ok"), means
    means = "Tokens that are sent are not looked at."
    return "login", rated("not asked for", "watch"), means


def _listens(config: Config) -> Sequence[Field]:
    if is_loopback(config.host):
        means = "Only programs on this machine reach it."
    else:
        how = "each shows who it is" if config.asks_who_it_is else "LEAKLINE_INSECURE allows that"
        means = f"Other machines reach it; {how}."
    return "listens on", f"{config.host}, port {config.port}", means


def _names(config: Config) -> Sequence[Field]:
    if answers_to_any_name(config):
        asked = "everybody is asked who they are."
        means = asked if config.asks_who_it_is else "what stands in front of the server should."
        means = f"Names are not checked; {means}"
        return "answers to", "any name", means
    names = ", ".join(filter(None, ("localhost", config.public_url)))
    return "answers to", names, "A site that leads a name of its own here is refused."


def _origins(config: Config) -> Sequence[Field]:
    pages = ", ".join(("its own", *config.allowed_origins))
    means = "Pages of other sites may not change anything (LEAKLINE_ALLOWED_ORIGINS names those that may)."
    return "pages that may change things", pages, means


def _webhooks(config: Config) -> Sequence[Field]:
    networks = ", ".join(("public addresses", *map(str, config.webhook_allow)))
    means = "Addresses of your own network only where LEAKLINE_WEBHOOK_ALLOW names it."
    return "webhooks may reach", networks, means


def settings(config: Config, database: tuple[str, str]) -> Section:
    how = (
        "As they are in force. They are read once, from the command line, the environment or else the default: change "
        "them there and restart. Secrets, and addresses that hold some, are never shown."
    )
    rows = [
        _row(config, variable, ", ".join(database) if variable == _DATABASE else None)
        for variable in _MEANINGS
        if variable not in _RETENTION
    ]
    shown = table(_HEADS, rows, tall=False)
    return Section("settings", "Settings in force", how, table=shown)


def _row(config: Config, variable: str, text: str | None = None) -> Sequence[Field]:
    name = VARIABLES[variable]
    value = getattr(config, name)
    if text is None:
        text = _WRITE.get(name, _plain)(value)
    return code(variable), text, _source(config, name, value), _MEANINGS[variable]


def _source(config: Config, name: str, value: object) -> str:
    given = config.sources.get(name)
    if given is not None:
        return given
    return "default" if value == getattr(_DEFAULT, name) else "the program that started it"


def _plain(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _hidden(value: object) -> str:
    return HIDDEN if value else "none"


def _hidden_addresses(value: Sequence[str]) -> str:
    return f"{count_of(len(value), 'address')}, not shown" if value else "none"


def _rules(value: Sequence[object]) -> str:
    return count_of(len(value), "rule") if value else "none"


def _priorities(limits: Priorities) -> str:
    return (
        f"major from {formats.size(limits.major_bytes)} on, critical from {formats.size(limits.critical_bytes)} on; "
        f"share {formats.percent(limits.share)}, hours {limits.hours:g}"
    )


def _per_project(write: Callable[[float], str], without: str) -> Callable[[PerProject], str]:
    def text(limits: PerProject) -> str:
        found = [("", limits.default), *sorted(limits.projects.items())]
        named = ((f"{name}: " if name else "", limit) for name, limit in found)
        return "; ".join(
            f"{name}{without if limit is None else write(limit)}" for name, limit in named
        )

    return text


def _days(days: float) -> str:
    return f"{formats.count(days)} {plural('day', days)}"


_DEFAULT: Final = Config()
_DATABASE: Final = "LEAKLINE_DATABASE_URL"
_HEADS: Final = ("setting", "in force", "from", "what it does")
_RETENTION: Final = ("LEAKLINE_KEEP_DAYS", "LEAKLINE_THIN_AFTER_DAYS", "LEAKLINE_KEEP_BYTES")
_WRITE: Final[Mapping[str, Callable[[Any], str]]] = {
    "webhook_url": _hidden,
    "webhook_secret": _hidden,
    "admin_password": _hidden,
    "apprise_urls": _hidden_addresses,
    "rules": _rules,
    "priorities": _priorities,
    "keep_days": _per_project(_days, FOR_EVER),
    "thin_after_days": _per_project(_days, "never"),
    "keep_bytes": _per_project(formats.size, "no bound"),
    "runs_per_day": _per_project(formats.count, "no bound"),
    "bytes_per_day": _per_project(formats.size, "no bound"),
}
# In the order they are shown; docs/settings.md says more of each.
_MEANINGS: Final[Mapping[str, str]] = {
    "LEAKLINE_KEEP_DAYS": "how long runs are kept after they were last heard of",
    "LEAKLINE_THIN_AFTER_DAYS": "when an ended run keeps its generation ends and extremes alone",
    "LEAKLINE_KEEP_BYTES": "how large a project may become; above it the runs heard of longest ago go",
    "LEAKLINE_RUNS_PER_DAY": "how many runs a project may begin on a day (UTC)",
    "LEAKLINE_BYTES_PER_DAY": "how much a project may store on a day (UTC)",
    "LEAKLINE_DATABASE_URL": "where everything is stored",
    "LEAKLINE_SYNCHRONOUS": "full survives a power cut, normal a killed process",
    "LEAKLINE_HOST": "the address it listens on",
    "LEAKLINE_PORT": "the port it listens on",
    "LEAKLINE_PUBLIC_URL": "the address people use, for links in messages",
    "LEAKLINE_TRUSTED_PROXIES": "proxies that are believed from which address a request comes, and whether by https",
    "LEAKLINE_INSECURE": "asks nobody who they are, also beyond this machine",
    "LEAKLINE_LOGIN": "asks who everybody is, also on this machine",
    "LEAKLINE_ADMIN_PASSWORD": "the password to sign in with",
    "LEAKLINE_ALLOWED_ORIGINS": "pages of other sites that may send",
    "LEAKLINE_WEBHOOK_URL": "where alerts go, besides the webhooks of the page Alerts",
    "LEAKLINE_WEBHOOK_SECRET": "signs them; made and printed once where it is not set",
    "LEAKLINE_WEBHOOK_FORMAT": "the form of their messages",
    "LEAKLINE_WEBHOOK_ALLOW": "networks a webhook may reach besides public addresses",
    "LEAKLINE_APPRISE_URLS": "addresses of apprise that alerts go to as well",
    "LEAKLINE_RULES": "a file with rules of your own",
    "LEAKLINE_LOG_FORMAT": "lines for people, or JSON for machines",
    "LEAKLINE_LOG_LEVEL": "from which level on it writes what it does",
    "LEAKLINE_PRIORITIES": "from when on a finding is major, and critical",
}
