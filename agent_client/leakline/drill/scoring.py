"""How right a verdict is about what was planted. Pure: a truth and what was seen in, answers out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..analysis.wording import format_bytes, format_count, worded
from .kinds import Kind

RAISED: Final = ("suspected", "confirmed")
# Events that say it is over.
OVER: Final = ("incident.recovered", "incident.resolved")
# How far off a right answer may be.
RATE_TOLERANCE: Final = 0.25
START_TOLERANCE: Final = 2
PLACES: Final = 3
_NO_PHASE: Final = "no single phase"


@dataclass(frozen=True, slots=True)
class Look:
    """What the run was called when so many generations had ended."""

    generations: int
    status: str


@dataclass(frozen=True, slots=True)
class Message:
    """A webhook's message: told after so many generations, ``seconds`` after the last of them had ended."""

    event: str
    incident: str
    status: str
    generations: int
    seconds: float
    signature_valid: bool
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One drill from outside. ``looks`` are in order of time; ``verdict`` is the last, over all generations."""

    verdict: Mapping[str, Any]
    looks: Sequence[Look] = ()
    messages: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class Truth:
    """What was planted: its kind, and the bytes per generation from its start on."""

    kind: Kind
    bytes_per_generation: float


@dataclass(frozen=True, slots=True)
class Answer:
    """To one question. ``right`` is None where there is no wrong answer; ``figures`` are for programs."""

    question: str
    right: bool | None
    told: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def score(truth: Truth, seen: Seen) -> tuple[Answer, ...]:
    """The answers in the order in which a person asks. A drill is passed when none of them is wrong."""
    if not truth.kind.leaks:
        return _quiet(seen), _no_webhook(seen)
    finding = finding_of(truth.kind, seen.verdict)
    if finding is None:
        return _not_found(seen), _webhook(seen)
    return (
        Answer("found", True, worded(finding["status"], seen.verdict["summary"]), {"status": finding["status"]}),
        _when(truth.kind, seen),
        _where(truth.kind, finding),
        _what(truth.kind, finding),
        _how_much(truth, finding),
        _since(truth.kind, finding),
        _webhook(seen),
        _told_once(seen),
        *_besides(truth.kind, finding, seen.verdict),
    )  # fmt: skip


def passed(answers: Sequence[Answer]) -> bool:
    return all(answer.right is not False for answer in answers)


def finding_of(kind: Kind, verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The raised finding that is about what was planted: by name and kind best; None when none is."""
    raised = [finding for finding in verdict["findings"] if finding["status"] in RAISED]
    fitting = [finding for finding in raised if _fit(kind, finding)]
    return max(fitting, key=lambda finding: _fit(kind, finding), default=None)


def place_of(names: Sequence[str], finding: Mapping[str, Any]) -> int | None:
    """The place of the first of the suspects that is one of these, from 1."""
    for place, suspect in enumerate(finding["suspects"], 1):
        if any(_is(suspect["name"], name) for name in names):
            return place
    return None


def first_raised(seen: Seen, statuses: Sequence[str] = RAISED) -> int | None:
    """The generations that had ended when it was first called so, by a look or by a message."""
    told: list[Look | Message] = [*seen.looks, *seen.messages]
    return min((one.generations for one in told if one.status in statuses), default=None)


def _fit(kind: Kind, finding: Mapping[str, Any]) -> int:
    """How well it is about what was planted, 0 for not at all: growth without a name accuses nothing else."""
    right_kind = finding["kind"] in kind.answers
    if place_of(kind.names, finding) is not None:
        return 2 + right_kind
    return int(not finding["suspects"] if kind.names else right_kind)


def _is(name: str, wanted: str) -> bool:
    # What a path ends with inside a container says where in an item, not what the container is.
    bare = name.partition("[*]")[0]
    return bare == wanted or bare.endswith(f".{wanted}")


def _quiet(seen: Seen) -> Answer:
    status, raised = seen.verdict["status"], first_raised(seen)
    told = worded(status, seen.verdict["summary"])
    if raised is None and status not in RAISED:
        return Answer("quiet", True, told, _accused(seen))
    when = "" if raised is None else f" (raised with {_generation(raised)})"
    return Answer("quiet", False, f"{told}{when}", _accused(seen))


def _accused(seen: Seen) -> Mapping[str, Any]:
    """What it is called in the end, of which kinds, and after how many generations it was accused first."""
    raised = [
        finding["kind"] for finding in seen.verdict["findings"] if finding["status"] in RAISED
    ]
    return {"status": seen.verdict["status"], "generations": first_raised(seen), "kinds": raised}


def _no_webhook(seen: Seen) -> Answer:
    events = [message.event for message in seen.messages]
    told = "none came"
    if seen.messages:
        first = seen.messages[0]
        told = f"{len(events)} came, the first {first.event}: {first.summary}"
    return Answer("webhook", not events, told, {"events": events})


def _not_found(seen: Seen) -> Answer:
    status, raised = seen.verdict["status"], first_raised(seen)
    told = f"not found within {seen.verdict['generations']} generations; {worded(status, seen.verdict['summary'])}"
    if raised is not None:
        told += f" (raised with {_generation(raised)})"
    return Answer("found", False, told, _accused(seen))


def _when(kind: Kind, seen: Seen) -> Answer:
    suspected, confirmed = first_raised(seen), first_raised(seen, ("confirmed",))
    parts = []
    for word, generations in (("suspected", suspected), ("confirmed", confirmed)):
        if generations is not None and not (word == "suspected" and generations == confirmed):
            late = generations - kind.first
            parts.append(f"{word} with {_generation(generations)}, after {late} of leaking")
    if confirmed is None:
        parts.append("not confirmed")
    figures = {
        "suspected_after": suspected,
        "confirmed_after": confirmed,
        "first_leaking": kind.first,
    }
    return Answer("when", None, "; ".join(parts), figures)  # fmt: skip


def _generation(ended: int) -> str:
    """The last of so many, counted from 0."""
    return f"generation {ended - 1}"


def _where(kind: Kind, finding: Mapping[str, Any]) -> Answer:
    phase, planted = finding["phase"], kind.phase if kind.in_phases else None
    told = phase or _NO_PHASE
    right = phase == planted
    return Answer(
        "where", right, told if right else f"{told}, but it is {planted or _NO_PHASE}",
        {"phase": phase, "planted": planted},
    )  # fmt: skip


def _what(kind: Kind, finding: Mapping[str, Any]) -> Answer:
    word, names = finding["kind"], [suspect["name"] for suspect in finding["suspects"]]
    place, held_by = place_of(kind.names, finding), place_of(kind.holders, finding)
    right = word in kind.answers
    told = word if right else f"called {word}, but it is {kind.answer}"
    if not kind.names:
        told += "; no Python object holds it"
    elif place is None:
        right = False
        told += f"; {', '.join(names) or 'nothing'} named, but it is {', '.join(kind.names)}"
    else:
        right = right and place <= PLACES
        told += "; " + " and ".join(
            f"{names[at - 1]} in place {at}" for at in sorted({place, held_by or place})
        )
    figures = {"kind": word, "place": place, "holder_place": held_by, "suspects": names}
    return Answer("what", right, told, figures)


def _how_much(truth: Truth, finding: Mapping[str, Any]) -> Answer:
    growth, planted = finding["growth_bytes_per_generation"], truth.bytes_per_generation
    off = growth["estimate"] / planted - 1
    told = (
        f"{format_bytes(growth['estimate'])} per generation ({format_bytes(growth['low'])} to"
        f" {format_bytes(growth['high'])}), planted {format_bytes(planted)}: off by {abs(off):.1%}"
    )
    figures = {"estimate": growth["estimate"], "planted": planted, "off": off}
    return Answer("how much", abs(off) <= RATE_TOLERANCE, told, figures)


def _since(kind: Kind, finding: Mapping[str, Any]) -> Answer:
    start = finding["started_at_generation"]
    if start is None:
        told = f"start unknown; it was generation {kind.first}"
        return Answer("since when", False, told, {"estimate": None, "planted": kind.first})
    off = start["estimate"] - kind.first
    said = format_count(start["estimate"])
    told = f"generation {said}, planted from {kind.first} on: off by {format_count(abs(off))}"
    figures = {"estimate": start["estimate"], "planted": kind.first, "off": off}
    return Answer("since when", abs(off) <= START_TOLERANCE, told, figures)


def _webhook(seen: Seen) -> Answer:
    events = [message.event for message in seen.messages]
    right = bool(events) and all(message.signature_valid for message in seen.messages)
    told = ", ".join(
        f"{message.event.rpartition('.')[2]} {message.seconds:.1f} s after {_generation(message.generations)}"
        for message in seen.messages
    )
    signed = "signed rightly" if right else "NOT signed rightly"
    seconds = [round(message.seconds, 3) for message in seen.messages]
    figures = {"events": events, "seconds": seconds, "signatures_valid": right}
    return Answer("webhook", right, f"{signed}: {told}" if told else "none came", figures)


def _told_once(seen: Seen) -> Answer:
    """A planted leak goes on to the end, so a message that calls it over is wrong."""
    incidents = {message.incident for message in seen.messages}
    over = [message for message in seen.messages if message.event in OVER]
    told = f"{len(incidents)} incident{'' if len(incidents) == 1 else 's'}"
    if over:
        said = ", ".join(
            f"{message.event.rpartition('.')[2]} with {_generation(message.generations)}"
            for message in over
        )
        told += f"; called {said} while it went on"
    return Answer(
        "told once", not over, told, {"incidents": len(incidents), "called_over": len(over)}
    )


def _besides(
    kind: Kind, finding: Mapping[str, Any], verdict: Mapping[str, Any]
) -> Iterator[Answer]:
    """What else was raised: something innocent, or a part of what was planted by another name."""
    others = [
        other for other in verdict["findings"]
        if other["status"] in RAISED and other["fingerprint"] != finding["fingerprint"]
    ]  # fmt: skip
    if not others:
        return
    told = "; ".join(
        f"{other['kind']} in {other['phase'] or _NO_PHASE}"
        f" ({', '.join(suspect['name'] for suspect in other['suspects'][:2]) or 'no names'}),"
        f" {format_bytes(other['growth_bytes_per_generation']['estimate'])} per generation"
        for other in others
    )
    innocent = [other for other in others if place_of(kind.names + kind.beside, other) is None]
    yield Answer(
        "besides",
        not innocent,
        told if innocent else f"{told}: a part of it",
        {"raised": len(others), "innocent": len(innocent)},
    )
