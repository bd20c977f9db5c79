"""A training that forks repeatedly while its own threads hold every Leakline lock; runs as its own process.

Each child calls what a program may call, under a watchdog, and exits in one of several ways. The last line is JSON
with the number of forks and the failures. `test_forks.py` and the soak test run it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leakline

WATCHDOG_SECONDS = float(os.environ.get("WATCHDOG_SECONDS", "5"))
HELD_SECONDS = 0.002


class Box(io.StringIO):
    """Slow target for `logging`, written to while its lock is held."""

    def write(self, text: str) -> int:
        time.sleep(HELD_SECONDS / 2)
        return len(text)


def locks(run: leakline.Run) -> list[Any]:
    """Return every Leakline lock that a thread may hold while another thread forks."""
    chain: Any = run._chain
    return [
        chain.loop._lock,
        chain.loop._order,
        chain.requests._lock,
        chain.outbox.file._lock,
        chain.verdicts._lock,
        logging.getLogger("leakline").handlers[0].lock,
    ]


def hold(lock: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        with lock:
            time.sleep(HELD_SECONDS)
        time.sleep(HELD_SECONDS / 10)


def measure(run: leakline.Run, stop: threading.Event) -> None:
    generation = 0
    while not stop.is_set():
        with run.phase("loader"), run.phase("inner"):
            run.gauge("g", generation)
            run.census()
        generation += 1
        time.sleep(HELD_SECONDS)


def log(stop: threading.Event) -> None:
    logger = logging.getLogger("storm")
    logger.addHandler(logging.StreamHandler(Box()))
    logger.propagate = False
    while not stop.is_set():
        logger.warning("line")


def inherited(spool: Path) -> list[str]:
    """Return descriptors of ours that are open in this process: the spool file and server connections."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            where = str(link.readlink())
            if where == str(spool) or where.startswith("socket:"):
                found.append(where)
    return found


def calls(run: leakline.Run) -> None:
    """Call what library code may call in a child; none of it may have an effect."""
    for each in (run, leakline.current()):
        each.generation(1_000_000)
        with each.phase("in the child"), each.phase("deeper"):
            each.mark("in the child")
            each.gauge("in the child", 1.0)
            each.snapshot("in the child")
        each.find_holders("list")
        each.census()
        each.register_cleanup("in the child", list)
        assert each.report() == ""
        each.finish()
    assert leakline.current().id == ""


def own_run(**where: Any) -> None:
    parent = leakline.current().id
    run = leakline.init(quiet=True, name="a child", **where)
    assert run.id not in ("", parent)
    with run.generation(0), run.phase("train"):
        run.mark("own")
    run.finish()


def in_pool(run: leakline.Run) -> None:
    """Check that a multiprocessing worker never starts a run."""
    calls(run)
    assert leakline.init(mode="offline", quiet=True).id == ""


def ways(run: leakline.Run, server: str) -> list[tuple[str, Callable[[], None]]]:
    """Return (name, function) for each way a child can exit; where the function returns, `sys.exit` follows."""

    def leave() -> None:
        calls(run)
        os._exit(0)

    def online() -> None:
        own_run(server=server)
        os._exit(0)

    def left_open() -> None:
        leakline.init(mode="offline", quiet=True, name="a child").generation(0)

    return [
        ("_exit", leave), ("_exit at once", lambda: os._exit(0)), ("sys.exit", lambda: calls(run)),
        ("own run", lambda: own_run(mode="offline")), ("own run, online", online), ("own run, left open", left_open),
    ]  # fmt: skip


def checked(run: leakline.Run, spool: Path, work: Callable[[], None]) -> None:
    """Run ``work`` in a forked child. A hang dumps the stack of every thread; an error gives a non-zero status."""
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
    open_still = inherited(spool)
    try:
        assert not open_still, open_still
        assert threading.active_count() == 1
        work()
    except AssertionError:
        traceback.print_exc()
        os._exit(3)


def main(server: str, forks: int) -> None:
    run = leakline.init(server=server, quiet=True, name="the parent")
    spool = run._chain.spool_path
    assert spool is not None
    run.generation(0)
    stop = threading.Event()
    busy = [threading.Thread(target=hold, args=(lock, stop), daemon=True) for lock in locks(run)]
    busy += [threading.Thread(target=measure, args=(run, stop), daemon=True) for _ in range(2)]
    busy.append(threading.Thread(target=log, args=(stop,), daemon=True))
    for thread in busy:
        thread.start()
    found: dict[str, list[int]] = {}
    by_hand = ways(run, server)
    context = multiprocessing.get_context("fork")
    for number in range(forks):
        if number % 10 == 0:
            run.generation(number // 10 + 1)
        kind = number % (len(by_hand) + 1)
        if kind == len(by_hand):
            worker = context.Process(target=checked, args=(run, spool, lambda: in_pool(run)))
            worker.start()
            worker.join()
            found.setdefault("multiprocessing", []).append(worker.exitcode or 0)
            continue
        name, work = by_hand[kind]
        pid = os.fork()
        if pid == 0:
            checked(run, spool, work)
            sys.exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        found.setdefault(name, []).append(status)
    stop.set()
    for thread in busy:
        thread.join()
    run.finish()
    failed = {name: [s for s in statuses if s] for name, statuses in found.items()}
    result = {"forks": forks, "failed": {name: s for name, s in failed.items() if s}}
    sys.stdout.write(json.dumps({**result, "run": run.id, "pid": os.getpid()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
