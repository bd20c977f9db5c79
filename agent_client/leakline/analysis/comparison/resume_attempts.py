"""A run that was resumed: whether its newest attempt still does what earlier ones did.

Attempts are one curve: what leaked before a restart and leaks after it is one finding, since its first generation. But
people resume with a fix, and then the newest attempt is a process of its own that has to be judged by what it does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..status import ACTIVE, Standing, still_counted, walk
from ..timeline import lanes_of
from ..timeline_analysis import PRIVATE, LaneStudy, Moment

# Generations of its own before an attempt is judged by itself; and where other memory than the private leaked.
MIN_OWN: Final = 12
MIN_OWN_ELSEWHERE: Final = 24
# Of the growth before; what a leak shows by chance is seldom so little.
MUCH_LESS: Final = 0.5

Told = tuple[LaneStudy, Moment, list[Standing]]


def judged(told: Told) -> list[Told]:
    """What stands by all attempts, or by the newest alone with what it does not do any more as recovered."""
    study, moment, standings = told
    own = _of_newest_attempt(study)
    if own is None:
        return [told]
    newest, now = walk(own)
    if newest is None or any(standing.status in ACTIVE for standing in now):
        return [told]
    before = [standing for standing in standings if standing.status in (*ACTIVE, "recovered")]
    if not all(_is_gone(standing, newest, now, own) for standing in before):
        return [told]
    gone = [replace(standing, status="recovered") for standing in before]
    return [(own, newest, now), (study, moment, gone)]


def _of_newest_attempt(study: LaneStudy) -> LaneStudy | None:
    lane = study.lane
    if not lane.segment or lane.segment[0] == lane.segment[-1]:
        return None
    mine = tuple(study.history.of_instance(lane.instance))
    history = replace(study.history, processes=mine)
    own = lanes_of(history)
    if not own or not MIN_OWN <= len(own[0]) < len(lane):
        return None
    return LaneStudy(history, own[0])


def _is_gone(standing: Standing, newest: Moment, now: list[Standing], own: LaneStudy) -> bool:
    """Return True if enough readings of the newest attempt show that the growth has stopped."""
    same = next((each for each in now if each.fingerprint == standing.fingerprint), None)
    if same is not None and still_counted(same.assessed):
        return False
    channel = standing.assessed.channel
    if channel != PRIVATE:
        is_known = any(each.name == channel for each in own.channels)
        return is_known and len(own.readings(channel)) >= MIN_OWN_ELSEWHERE
    if len(own.readings(PRIVATE)) < MIN_OWN:
        return False
    return newest.growth.high <= MUCH_LESS * standing.assessed.cause.rate.estimate
