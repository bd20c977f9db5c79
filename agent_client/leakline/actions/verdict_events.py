"""What has changed from one verdict to the next, under the event names that alerts have. One process's own verdicts.

    last told of a finding   now suspected   now confirmed           now recovered   now gone, ok
    nothing                  suspected       suspected, confirmed    -               -
    suspected                -               confirmed               recovered       (forgotten)
    confirmed, violated      -               -                       recovered       (forgotten)

A finding that is only watched for a while is not told again when it is back. One that is confirmed at once is also told
to who waits for suspected ones. A declared count that is broken is `contract.violated` instead of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..analysis.results import Finding, Verdict

SUSPECTED: Final = "incident.suspected"
CONFIRMED: Final = "incident.confirmed"
RECOVERED: Final = "incident.recovered"
OOM: Final = "oom.risk"
VIOLATED: Final = "contract.violated"
EVENTS: Final = (SUSPECTED, CONFIRMED, RECOVERED, OOM, VIOLATED)

_STANDING: Final = ("suspected", "confirmed", "watch", "learning")
# Nothing more is told of a finding until it is over.
_SETTLED: Final = frozenset({CONFIRMED, VIOLATED})
_RISKS: Final = ("high", "critical")


@dataclass(frozen=True, slots=True)
class _Told:
    finding: Finding
    events: frozenset[str]


class VerdictEvents:
    """``since_last`` is called with each verdict in turn."""

    def __init__(self) -> None:
        # By fingerprint.
        self._told: dict[str, _Told] = {}
        self._risk = 0

    def since_last(self, verdict: Verdict) -> set[str]:
        """The events that have happened since the verdict before; oom.risk when it is high, and when critical."""
        found, told = set[str](), dict[str, _Told]()
        here = {finding.fingerprint for finding in verdict.findings}
        gone = [each for name, each in self._told.items() if name not in here]
        for finding in verdict.findings:
            before = self._told_of(finding, gone)
            now = _events(finding)
            found |= frozenset() if before & _SETTLED else now - before
            if finding.status == "recovered" and before:
                found.add(RECOVERED)
            elif finding.status in _STANDING and (before or now):
                told[finding.fingerprint] = _Told(finding, before | now)
        self._told = told
        if self._riskier(verdict):
            found.add(OOM)
        return found

    def _told_of(self, finding: Finding, gone: list[_Told]) -> frozenset[str]:
        """Also under another fingerprint that is gone: a leak known better by now is no second one."""
        known = self._told.get(finding.fingerprint)
        if known is None and finding.status in _STANDING and gone:
            from ..analysis.attribution.causes import goes_on_as

            known = next((each for each in gone if goes_on_as(each.finding, finding)), None)
            if known is not None:
                gone.remove(known)
        return frozenset() if known is None else known.events

    def _riskier(self, verdict: Verdict) -> bool:
        risk = _RISKS.index(verdict.oom.risk) + 1 if verdict.oom.risk in _RISKS else 0
        # It may go to and fro between high and critical: what was told stays told until the risk is over.
        before, self._risk = self._risk, max(risk, self._risk) if risk else 0
        return risk > before


def _events(finding: Finding) -> frozenset[str]:
    """What is to be told of a finding as it stands now."""
    if finding.status not in ("suspected", "confirmed"):
        return frozenset()
    if finding.kind == "count_contract":
        return frozenset({VIOLATED})
    return frozenset({SUSPECTED, CONFIRMED} if finding.status == "confirmed" else {SUSPECTED})
