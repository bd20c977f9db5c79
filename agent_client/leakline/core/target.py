"""Whom a run measures: the process that called `init`, one that knows nothing of us, or another one from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..sampling.background_readings import Approach
from ..sampling.overhead_budget import Governor
from ..sampling.run_requests import RequestBox
from ..sampling.sampler import Sampler
from ..snapshot import ProcessIdentity, RunHeader


@dataclass(frozen=True, slots=True)
class Subject:
    """``pid``: another process. ``is_beside``: this one, whose program calls nothing of ours. ``is_told_of``: somebody
    else says the lines at the start and at the end. ``unit``: of time, for a program without generations.
    """

    pid: int | None = None
    is_beside: bool = False
    is_told_of: bool = False
    unit: str | None = None
    # Instead of what this process was started from.
    environment: Mapping[str, Any] = field(default_factory=dict)

    def sampler(self, governor: Governor, exact_peaks: bool, requests: RequestBox) -> Sampler:
        if self.pid is not None:
            # Of no use to a program that measures itself.
            from ..sampling.external_process import OutsideSampler

            return OutsideSampler(self.pid, governor)
        sampler = Sampler(governor, exact_peaks=exact_peaks, requests=requests)
        if self.is_beside:
            sampler.stay_beside()
        return sampler

    def identified(self, own: ProcessIdentity) -> ProcessIdentity:
        return own if self.pid is None else replace(own, pid=self.pid)

    def described(self, header: RunHeader) -> RunHeader:
        environment = header.environment
        if self.pid is not None:
            # Of us, not of what is watched.
            ours = (
                "python",
                "packages",
                "command_line",
                "commit",
                "repository",
                "dirty",
                "notebook",
            )
            environment = {k: v for k, v in environment.items() if k not in ours}
        unit = header.unit if self.unit is None else self.unit
        return replace(header, unit=unit, environment={**environment, **self.environment})

    def approach(self) -> Approach | None:
        """None: how near this process is to running out of memory."""
        return None if self.pid is None else Approach(read=lambda: None)


OF_ITS_OWN = Subject()
