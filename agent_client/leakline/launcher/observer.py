"""Observes a program that does not call Leakline.

`leakline run` starts the observer through `launcher/startup/sitecustomize.py`, and `leakline watch --inside` through
`begin_inside`. The observer measures on its own threads at the end of each time interval (`Intervals`), or at the
generations that `integrations/plain_loop.py` finds. During the first seconds, the observer does not contact the
server. Most programs that use Leakline call `init` within this time; the observer then ends and deletes its data.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..analysis.generation_axis import COUNTED_BY_SECONDS_UP_TO, UNITS_OF_TIME
from ..core import shutdown
from ..core.pipeline import Subject
from ..core.process_tree import ANNOUNCED, in_worker, take_back
from ..run import Run, active, current, observe
from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..settings import Settings, resolve, start_ticks
from ..text_format import count_of

# How long after the end of an interval its measurement is taken, as a fraction of the interval. A measurement that is
# too early would be a second measurement in the previous interval.
LATE: Final = 0.05


class Intervals:
    """Calls ``end`` with a label at the end of each interval of ``unit``, on a thread of its own.

    The thread also calls ``then`` after ``then_seconds``. If ``then`` returns a number of seconds, the thread calls it
    again after this time. If ``then`` returns None, it is not called again.
    """

    def __init__(
        self,
        unit: str,
        end: Callable[[str], None],
        then: Callable[[], float | None] = lambda: None,
        then_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit, self._end, self._then, self._clock = unit, end, then, clock
        self._guard = Guard("measuring an interval")
        self._started = clock()
        self._then_at: float | None = self._started + then_seconds
        self._number = 0
        self._over = threading.Event()
        self._thread = OurThread("intervals", self._run)

    def start(self) -> None:
        """Start the thread. If that fails, nothing is measured, and the program continues."""
        with self._guard:
            self._thread.start()

    def stop(self) -> None:
        """Prevent all later measurements."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(max(0.0, self._next() - self._clock())):
            with self._guard:
                self._do_what_is_due()

    def _next(self) -> float:
        due = self._due()
        return due if self._then_at is None else min(due, self._then_at)

    def _due(self) -> float:
        return self._started + (self._number + 1 + LATE) * UNITS_OF_TIME[self._unit]

    def _do_what_is_due(self) -> None:
        now = self._clock()
        if self._then_at is not None and now >= self._then_at:
            seconds = self._then()
            self._then_at = None if seconds is None else now + seconds
        if now < self._due():
            return
        if self._unit == "second" and now - self._started > COUNTED_BY_SECONDS_UP_TO:
            self._unit = "minute"
        # Derive the number from the clock instead of incrementing it, to skip intervals during which the machine was
        # suspended.
        self._number = int((now - self._started) / UNITS_OF_TIME[self._unit])
        self._end(f"after {count_of(self._number, self._unit)}")


# Environment variable with a `Plan` as JSON, which instructs the interpreters started by `leakline run`.
PLAN: Final = "_LEAKLINE_OBSERVE"
HOLD_SECONDS: Final = 5.0
# A program that mentions leakline may take a long time to load before it calls init.
HOLD_SECONDS_WHEN_NAMED: Final = 60.0
SCRIPT_READ_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """Instructions for an observed interpreter.

    ``startup``: the folder added to PYTHONPATH; ``python_path``: the previous value of PYTHONPATH. ``seen``: folder in
    which each interpreter creates a file named after its process id. ``children``: also observe processes that the
    program starts. ``is_automatic``: add callbacks to the frameworks that the program uses.
    """

    launcher: int
    startup: str
    seen: str
    python_path: str | None = None
    unit: str = "second"
    tags: tuple[str, ...] = ()
    children: bool = False
    log_lines: bool = False
    is_automatic: bool = True

    def to_environment(self) -> str:
        return json.dumps(asdict(self))


def _plan_of(environ: Mapping[str, str]) -> Plan:
    fields = json.loads(environ[PLAN])
    return Plan(**{**fields, "tags": tuple(fields["tags"])})


def begin(environ: Mapping[str, str] = os.environ) -> None:
    """Begin to observe this interpreter. Call this before its program begins."""
    plan = _plan_of(environ)
    if os.getppid() != plan.launcher and "RANK" not in environ and ANNOUNCED not in environ:
        # An ancestor that is not a Python program was started by `leakline run`, which watches it from outside. Join
        # the run as a child process.
        os.environ[ANNOUNCED] = (
            f"{environ['LEAKLINE_RUN_ID']}:1:{start_ticks(plan.launcher)}:{plan.launcher}"
        )
    if in_worker():
        return
    settings = resolve(tags=plan.tags or None, log_lines=plan.log_lines or None)
    if settings.mode != "disabled":
        if plan.is_automatic:
            from ..integrations.automatic import install

            install(tags=plan.tags or None, log_lines=plan.log_lines or None)
        _Observed(plan).begin(settings)


def begin_inside(package: str, given: dict[str, str], answer: str) -> None:
    """Begin to observe a program that is already running, and write to ``answer`` why that failed, or nothing.

    The running program executes the source of this function, which therefore imports all that it uses. ``package``: the
    folder to import Leakline from if the program cannot import it. ``given``: as for `attach`.
    """
    import _thread

    # This module registers a hook that takes its lock before a fork. Our hook is registered later, to run earlier.
    import logging  # noqa: F401
    import os

    # The program may hold any lock when it is interrupted here, so everything else happens on another thread. A child
    # that is forked during an import could never import that module, so forks wait, but not forever.
    beginning, held = _thread.allocate_lock(), []

    def before_fork() -> None:
        held.append(beginning.acquire(timeout=3.0))

    def after_fork() -> None:
        if held and held.pop():
            beginning.release()

    def begin() -> None:
        why = ""
        try:
            with beginning:
                import sys
                from importlib import util

                if util.find_spec("leakline") is None:
                    spec = util.spec_from_file_location("leakline", f"{package}/__init__.py")
                    assert spec is not None and spec.loader is not None
                    sys.modules["leakline"] = util.module_from_spec(spec)
                    spec.loader.exec_module(sys.modules["leakline"])
                from leakline.launcher.observer import attach

                why = attach(given)
        except Exception as error:  # noqa: BLE001 - the program must not see it
            why = f"{type(error).__name__}: {error}"
        try:
            with open(f"{answer}.part", "w", errors="replace") as file:  # noqa: PTH123 - needs no import
                file.write(why)
            os.replace(f"{answer}.part", answer)  # noqa: PTH105
        except OSError:
            # The command has ended, so nobody reads the answer.
            pass

    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork)
    _thread.start_new_thread(begin, ())


def attach(given: Mapping[str, str]) -> str:
    """Begin to observe this program. Return why that is refused, or an empty string.

    ``given``: the plan and the settings as variables, which are not added to the program's environment.
    """
    if active() is not None or current().id or in_worker():
        return "it already belongs to a run of Leakline"
    plan = _plan_of(given)
    own = {name: text for name, text in os.environ.items() if not name.startswith("LEAKLINE_")}
    observed = _Attached(plan)
    observed.begin(resolve({**own, **given}, tags=plan.tags or None))
    return "" if observed.id else "the recording could not be started"


class _Observed(Run):
    """The run of an observed program, until the program starts its own run."""

    _is_of_others = True

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        # A process that our launcher started needs no signal handler, because the launcher sees which signal ended the
        # process.
        self._hears_signals = os.getppid() != plan.launcher
        self._intervals: Intervals | None = None
        self._looks = 0

    def begin(self, settings: Settings) -> None:
        subject = Subject(is_in_background=True, is_silent=True, unit=self._plan.unit)
        observe(self, settings, subject)
        loop = self._loop
        if loop is not None:
            # The program has not loaded its script yet, so whether the script mentions Leakline can only be checked
            # later.
            self._intervals = Intervals(
                self._plan.unit, loop.end_interval, self._hold_on, HOLD_SECONDS
            )
            self._intervals.start()

    def _hold_on(self) -> float | None:
        """Start sending to the server, unless the program may still call `init` or train with a framework.

        Returns the seconds until the next check, or None once sending has started.
        """
        self._looks += 1
        if self._looks * HOLD_SECONDS < HOLD_SECONDS_WHEN_NAMED and (
            _speaks_of_us() or self._may_train()
        ):
            return HOLD_SECONDS
        self._chain.let_go()
        return None

    def _may_train(self) -> bool:
        from ..integrations.automatic import is_loaded

        return self._plan.is_automatic and is_loaded()

    def _has_announced(self, settings: Settings) -> bool:
        """Return True if `leakline run` has printed the line that the new run would print."""
        mine, name = self._settings, self._chain.header.name
        return mine is not None and (mine.mode, mine.url, mine.run_directory, name) == (
            settings.mode, settings.url, settings.run_directory, settings.name,
        )  # fmt: skip

    def _make_way(self, settings: Settings) -> Settings:
        if settings.mode == "disabled":
            return settings
        assert self._settings is not None
        if not self._chain.is_held:
            self.finish()
            if settings.run_id != self._settings.run_id:
                return settings
            # The server already knows the run, under this project.
            project, by = self._settings.project, self._settings.project_is_argument
            return replace(settings, project=project, project_is_argument=by, resume="allow")
        self._vanish()
        return settings

    def _vanish(self) -> None:
        """End the run and delete its data, because the program has called `init` itself."""
        if self._finishing.begin():
            self._stop_intervals()
            self._loop = None
            if self._announces:
                take_back()
            with self._guard:
                self._chain.discard()
            self._finishing.done()
            shutdown.unwatch(self)

    def _leave(self, end: tuple[str, str]) -> None:
        self._stop_intervals()
        super()._leave(end)

    def _stop_intervals(self) -> None:
        if self._intervals is not None:
            self._intervals.stop()


class _Attached(_Observed):
    """The run of a program that was already running when it was first observed."""

    # Changing the environment could crash a thread of the program that reads it at this moment.
    _announces = False


def _speaks_of_us() -> bool:
    script: Any = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(script, str) or _is_a_command_of_ours(Path(script)):
        return False
    try:
        with Path(script).open("rb") as file:
            return b"leakline" in file.read(SCRIPT_READ_BYTES)
    except OSError:
        return False


def _is_a_command_of_ours(script: Path) -> bool:
    """Return True for Leakline's own commands, which mention Leakline but never start a run."""
    return script.name == "leakline" or script == Path(__file__).parents[1] / "__main__.py"
