"""A simulated training that reports to a real server like the client: over HTTP, batch by batch.

With the leak, it keeps 16 environments per generation from generation 2 on; fixed, it keeps none.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from tests.json_batches import batch_to_wire

from leakline.snapshot import (
    Batch,
    Census,
    Event,
    Holder,
    LargeObject,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    header_to_wire,
)

MIB = 2**20
GIB = 2**30
EVALUATE, TRAIN, EVOLVE = "evaluate_population", "train_population", "evolve_population"
ENVIRONMENT, AGENT = "trading.TradingEnvironment", "agents.DDPGAgent"
LEAK_STARTS = 2
KEPT_EACH = 440 * MIB
LIMIT = 192 * GIB
SECONDS = {EVALUATE: 22.0, TRAIN: 14.0, EVOLVE: 1.5}


def post(url: str, body: Any, token: str = "") -> Any:
    data = json.dumps(body).encode()
    who = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, data, {"content-type": "application/json"} | who)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def patch(url: str, body: Any) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {"content-type": "application/json"}, method="PATCH"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def band(first: int, last: int, low: int, high: int) -> dict[str, Any]:
    return {"first": first, "last": last, "low_bytes": low, "high_bytes": high}


@dataclass
class MadeTraining:
    server: str
    run: str
    leaking: bool = True
    tells_holders: bool = True
    project: str = "erl-trading"
    tags: tuple[str, ...] = ()
    total: int | None = 25
    unit: str = "generation"
    registers_cleanup: bool = False
    # Adds a plan, budgets, a fix with promises, a note, a gauge and a device.
    rich: bool = False
    rank: int = 0
    # For servers with authentication.
    token: str = ""
    generation: int = 0
    sequence: int = 0
    private: float = 4.1 * GIB
    environments: int = 2
    buffer: int = 0
    # Requests from the server's last answer.
    requests: list[dict[str, str]] = field(default_factory=list)
    clock: float = field(default_factory=lambda: time.time() - 1200)
    dice: random.Random = field(default_factory=lambda: random.Random(4))

    def start(self) -> None:
        """Join the run and report the baseline with its declarations."""
        torch = "2.13.0" if self.leaking or self.rank else "2.13.1"
        environment = {
            "python": "3.11.9",
            "packages": {"torch": torch},
            "commit": "1f0c9a2",
            "host": "node-7",
        }
        header = RunHeader(
            self.run, self.project, self.run, self.unit, self.total, self.clock, (EVALUATE, TRAIN, EVOLVE),
            self.tags, {"population": 16, "learning_rate": 3e-4}, environment,
        )  # fmt: skip
        post(f"{self.server}/api/v1/runs", header_to_wire(header), self.token)
        declared = (
            self._event("expect", ENVIRONMENT, {"low": 2, "high": 2, "after": None}),
            self._event("expect", AGENT, {"low": 17, "high": 17, "after": EVOLVE}),
            self._event("track", "replay", {"capacity": 50_000}),
            self._event("watch", ENVIRONMENT, {}),
        )
        if self.registers_cleanup:
            told = {"on_request": True, "when": None}
            declared = (*declared, self._event("register_cleanup", "agent", told))
        if self.rich:
            declared = (*declared, *self._plans())
        self._send([self._snapshot("baseline", None, "baseline", events=declared)])

    @property
    def instance(self) -> str:
        return f"{self.run}-1" if self.rank == 0 else f"{self.run}-1-rank-{self.rank}"

    def _plans(self) -> tuple[Event, ...]:
        budget = {"normal_bytes": 4 * GIB, "leak_bytes": 5 * GIB}
        promises = {
            "growth_bytes_per_generation": 500 * MIB,
            "peak_bytes": 40 * GIB,
            "generations": 25,
        }
        place = {"phase": TRAIN, "location": "training/erl_trainer.py:281", "promises": promises}
        link = "https://example.org/profile"
        return (
            self._event("band", "process.rss_bytes", band(0, 5, 30 * GIB, 40 * GIB)),
            self._event("band", "process.rss_bytes", band(6, 25, 35 * GIB, 45 * GIB)),
            self._event("budget", EVALUATE, budget),
            self._event("budget", "generation", budget),
            self._event("fix", "detach losses", place),
            self._event("note", "note", {"text": "see the profile", "link": link}),
        )

    def run_generations(self, number: int) -> None:
        for _ in range(number):
            self.run_generation()

    def run_generation(self) -> None:
        before, phase_accounts, rows = self.private, {}, []
        for phase in (EVALUATE, TRAIN, EVOLVE):
            at_start = self.private
            events = self._work(phase)
            self.clock += SECONDS[phase]
            phase_accounts[f"phase.{phase}.bytes"] = round(self.private - at_start)
            phase_accounts[f"phase.{phase}.seconds"] = SECONDS[phase]
            phase_accounts[f"phase.{phase}.executions"] = 1
            label = f"{self.unit} {self.generation}: after {phase}"
            rows.append(self._snapshot("phase_end", phase, label, events=events))
        self.private += self.dice.uniform(-2, 3) * MIB
        booked = sum(value for name, value in phase_accounts.items() if name.endswith(".bytes"))
        phase_accounts["phase.between.bytes"] = round(self.private - before) - booked
        phase_accounts["generation.seconds"] = sum(SECONDS.values())
        label = f"{self.unit} {self.generation}: end"
        rows.append(self._snapshot("generation_end", None, label, phase_accounts, look=True))
        self._send(rows)
        self.generation += 1

    def answer_requests(self) -> None:
        """Report each pending request of the server as done."""
        if not self.requests:
            self._send([self._snapshot("phase_end", TRAIN, "asks for requests")])
        done = [
            self._event("mark", "done", {"request": each["id"], "outcome": "done"}, TRAIN)
            for each in self.requests
        ]
        self._send([self._snapshot("phase_end", TRAIN, "answers", events=tuple(done))])

    def finish(self) -> None:
        patch(
            f"{self.server}/api/v1/runs/{self.run}",
            {"state": "finished", "instance": self.instance},
        )

    def _work(self, phase: str) -> tuple[Event, ...]:
        self.private += self.dice.uniform(-6, 6) * MIB
        if phase == EVALUATE:
            added = min(50_000 - self.buffer, 6_250)
            self.buffer += added
            self.private += added * 24 * 1024
            if self.leaking and self.generation >= LEAK_STARTS:
                self.environments += 16
                self.private += 16 * KEPT_EACH
        if phase == TRAIN and self.generation % 2:
            freed = self.generation % 4 // 2 * 120 * MIB
            data = {
                "before_bytes": round(self.private) + freed,
                "after_bytes": round(self.private),
                "freed_bytes": freed,
                "seconds": 0.2,
            }
            return (self._event("cleanup", "agent", data, phase),)
        if phase == EVOLVE and self.generation == 6:
            return (self._event("mark", "learning rate drop", {}, phase),)
        return ()

    def _event(self, kind: str, name: str, data: dict[str, Any], phase: str | None = None) -> Event:
        generation = None if kind in ("expect", "track", "watch") else self.generation
        return Event(self.sequence, self.clock, kind, name, generation, phase, data)

    def _snapshot(
        self, kind: str, phase: str | None, label: str, more: dict[str, float] | None = None, *,
        events: tuple[Event, ...] = (), look: bool = False,
    ) -> Snapshot:  # fmt: skip
        number, self.sequence = self.sequence, self.sequence + 1
        private = round(self.private)
        samples = {
            "process.anon_bytes": private, "process.swap_bytes": 0, "process.file_bytes": 380 * MIB,
            "process.shared_bytes": 24 * MIB, "process.rss_bytes": private + 404 * MIB,
            "process.peak_bytes": private + 900 * MIB, "allocator.kept_bytes": 310 * MIB,
            "cgroup.limit_bytes": LIMIT, "cgroup.used_bytes": private + 700 * MIB,
            "system.total_bytes": 256 * GIB, "system.available_bytes": 256 * GIB - private,
            f"type.{ENVIRONMENT}.count": self.environments, f"type.{AGENT}.count": 17,
            "tracked.replay.length": self.buffer, "tracked.replay.capacity": 50_000,
            "tracked.replay.bytes": self.buffer * 24 * 1024,
            "client.seconds": 0.004 * number, "client.pause_seconds": 0.0031, "client.bytes": 2 * MIB,
            **({**self._device(), **self._children()} if self.rich else {}), **(more or {}),
        }  # fmt: skip
        census, large, holders = None, (), ()
        if look:
            arrays = 400 + 9 * self.environments
            samples |= {
                "tensors.count": 1180 + self.dice.randrange(6), "tensors.graph_count": 0, "arrays.count": arrays,
                "type.numpy.ndarray.count": arrays, "type.numpy.ndarray.bytes": self.environments * KEPT_EACH,
            }  # fmt: skip
            census, large, holders = self._look(number)
        return Snapshot(
            number, self.clock, self.clock, None if kind == "baseline" else self.generation, phase, label, kind,
            samples, events, large, census, holders,
        )  # fmt: skip

    def _children(self) -> dict[str, float]:
        """Return the memory of two loader workers, and of a collector that grows a little."""
        sizes = {"loader_worker-0": 120 * MIB, "loader_worker-1": 118 * MIB}
        sizes["collector-7"] = 64 * MIB + 64 * 1024 * self.generation
        told: dict[str, float] = {f"children.process.{n}.uss_bytes": b for n, b in sizes.items()}
        return {**told, "children.count": 3, "children.uss_bytes": sum(sizes.values())}

    def _device(self) -> dict[str, float]:
        held = 6 * GIB + self.generation * 12 * MIB
        return {
            "cuda.0.allocated_bytes": held, "cuda.0.reserved_bytes": 9 * GIB,
            "cuda.0.inactive_split_bytes": 700 * MIB, "cuda.0.retries": 0,
            "gpu.0.used_bytes": 10 * GIB, "gpu.0.total_bytes": 80 * GIB,
            "gauge.pending_uploads": self.generation % 7,
        }  # fmt: skip

    def _look(self, number: int) -> tuple[Census, tuple[LargeObject, ...], tuple[Holder, ...]]:
        arrays = 400 + 9 * self.environments
        types = (
            ("numpy.ndarray", arrays, self.environments * KEPT_EACH),
            (ENVIRONMENT, self.environments, self.environments * 1200),
        )
        shape, holder = "(11534336, 10) float32", "trading.TradingEnvironment.prices"
        large = (
            LargeObject(number, "numpy.ndarray", 440 * MIB, shape, holder),
            LargeObject(number, "torch.Tensor", 98 * MIB, "(50000, 512) float32"),
        )
        kept, path = self.environments - 2, "erl_trainer.Trainer.population_history[*]"
        told = kept and self.tells_holders
        holders = (Holder(number, ENVIRONMENT, path, kept, KEPT_EACH),) if told else ()
        return Census(number, "full", 1.0, 61_000 + arrays, types), large, holders

    def _send(self, rows: list[Snapshot]) -> None:
        who = ProcessIdentity(self.instance, self.rank, 4242 + self.rank, "node-7", "main", 1)
        answer = post(
            f"{self.server}/api/v1/runs/{self.run}/batches",
            batch_to_wire(Batch(who, tuple(rows))),
            self.token,
        )
        self.requests = answer["requests"]
