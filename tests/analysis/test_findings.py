"""Contents of a finding: ordered suspects, numbers, code, gauges that move with it, and what is omitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builder import GB, Training, kept_environments
from pieces import (
    BROKEN,
    FLAT,
    NOWHERE,
    SPREAD,
    TRAIN,
    assessed,
    candidate,
    cause_of,
    ends_history,
    growing,
    study_of,
    sure,
    timeline_from_rows,
    with_series,
)

from leakline.analysis import RunHistory, examine
from leakline.analysis.assertions.expected_counts import Violation
from leakline.analysis.attribution.candidates import Candidate, Family, Place
from leakline.analysis.comparison.comparison_results import GaugeChange
from leakline.analysis.findings.code_locations import code_link, commit_link, located
from leakline.analysis.findings.finding_builder import (
    _children,
    _confidence,
    _contract_lines,
    _count_lines,
    _count_rate,
    _counted_too_rarely,
    _explained_lines,
    _harmless,
    _is_idle,
    _kept_in,
    _memory_lines,
    _per_execution,
    _phase_lines,
    _rate_of_member,
    _suspects,
    _unknown,
    _upper_bound_lines,
    build_finding,
    merge_alike,
    of_note,
    only_contract,
    rank_key,
    worth_reporting,
)
from leakline.analysis.findings.gauges import (
    _change,
    _median,
    companions,
    compared,
    gauges_of,
    rank_correlation,
    title,
    with_companions,
)
from leakline.analysis.findings.verdict_summary import DEFAULTS, Priorities
from leakline.analysis.memory.uncollected_memory import Waiting
from leakline.analysis.results import Finding, Interval, Kind, Status
from leakline.analysis.run_history import Expectation, Value
from leakline.analysis.statistics.memory_evidence import Rise
from leakline.analysis.statistics.trend import Slope
from leakline.analysis.status import Standing
from leakline.analysis.timeline import Timeline
from leakline.analysis.timeline_analysis import Assessed
from leakline.snapshot import Event, Holder

ENVS = candidate("app.Env", "object", 60.0, deep=True)


def test_growing_children_are_suspects_from_the_start_of_the_growth() -> None:
    """Earlier one of them had risen much faster."""
    rows: list[Value] = [0, 900, 1800, 2700, *range(2710, 2790, 10)]
    study = study_of(children__process__loader__uss_bytes=rows)
    children = cause_of(kind="children", rate=10.0)
    found = _children(study, assessed(children, start=(4.0, 1.0, 5.0)))
    assert [(s.name, s.bytes_per_generation) for s in found.suspects] == [("loader", 10.0)]
    assert _children(study, assessed(cause_of(rate=10.0))).suspects == ()


def _standing(a: Assessed, status: Status = "suspected", confirmations: int = 0) -> Standing:
    return Standing("f" * 16, a, status, confirmations)


STILL = replace(ENVS, violation=BROKEN, growth=growing(0.0))
RISES = replace(ENVS, violation=BROKEN)


@pytest.mark.parametrize(
    ("owner", "witnesses", "rate", "only"),
    [
        (STILL, (), 9.0, True), (RISES, (), 0.0, True), (RISES, (), 9.0, False),
        (replace(RISES, growth=growing(0.5)), (), 0.5, False), (STILL, ("counts",), 9.0, False), (ENVS, (), 0.0, False),
    ],
    ids=["as many as ever", "no memory", "both rise", "both a little", "a count that lasts", "nothing broken"],
)  # fmt: skip
def test_a_broken_count_alone_explains_no_memory(
    owner: Candidate, witnesses: tuple[str, ...], rate: float, only: bool
) -> None:
    assert only_contract(assessed(cause_of(owner, rate=rate), *witnesses)) == only


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (candidate("dict", "plain", 5.0), True), (candidate("dict", "plain", 4.9), False),
        (candidate("dict", "plain"), True), (candidate("dict", "plain", 4.9, declared=True), True),
        (candidate("dict", "plain", 4.9, violation=BROKEN), True),
        (candidate("json.Decoder", "library", 4.9), True),
    ],
    ids=["a twentieth", "less", "unmeasured", "declared", "broken", "of a library"],
)  # fmt: skip
def test_tiny_plain_types_are_not_suspects(member: Candidate, expected: bool) -> None:
    assert (member in of_note(cause_of(ENVS, member, rate=100.0))) == expected
    # Any owner counts as one.
    assert member in of_note(cause_of(member, rate=100.0))


def test_suspects_are_ordered_owner_holder_lists_others() -> None:
    held = candidate("app.Env.log", "container", 5.0, slope=50)
    foreign = candidate("app.other", "container", 5.0, slope=50)
    arrays = candidate("numpy.ndarray", "array", 20.04, slope=3.00049)
    envs = replace(ENVS, holder="app.Trainer.kept[*]")
    found = _suspects(study_of(), cause_of(envs, arrays, foreign, held, arrays, rate=100.04))
    assert [(s.name, s.role, s.count_per_generation, s.bytes_per_generation) for s in found] == [
        ("app.Env", "type", 1.0, 100.0), ("app.Trainer.kept[*]", "holder", 1.0, None),
        ("app.Env.log", "container", 50.0, 5.0), ("numpy.ndarray", "type", 3.0, 20.0),
    ]  # fmt: skip
    # A list that owns the growth comes before its contents.
    log = candidate("app.log", "container", 5.0)
    found = _suspects(study_of(), cause_of(log, candidate("app.Env", "object", slope=40)))
    assert [s.name for s in found] == ["app.log", "app.Env"]


def test_no_more_than_eight_suspects_and_three_counts_are_listed() -> None:
    many = [candidate(f"app.C{i}", "object") for i in range(12)]
    assert [s.name for s in _suspects(study_of(), cause_of(*many))] == [m.name for m in many[:8]]
    assert len(_count_lines(study_of(), assessed(cause_of(*many)))) == 3


def test_holders_reveal_the_contents_of_an_uncounted_list() -> None:
    holders = (Holder(3, "app.Env", "app.log[*]", 5), Holder(3, "app.Agent", "app.other", 5))
    study = study_of(ends_history({"process.anon_bytes": FLAT}, holders=holders))
    log = candidate("app.log", "container")
    assert [(s.name, s.role) for s in _kept_in(study, cause_of(log))] == [("app.Env", "type")]
    assert _kept_in(study, cause_of(log, ENVS)) == []
    assert _kept_in(study, cause_of(ENVS)) == []
    assert _kept_in(study, cause_of()) == []


@pytest.mark.parametrize(
    ("rate", "position", "expected"), [(100.06, 0, 100.1), (0.5, 0, 0.5), (100.0, 1, 60.0), (0.0, 0, 60.0)]
)  # fmt: skip
def test_the_owner_has_the_entire_growth(rate: float, position: int, expected: float) -> None:
    assert _rate_of_member(cause_of(ENVS, rate=rate), ENVS, position) == expected
    assert _rate_of_member(cause_of(ENVS), replace(ENVS, bytes_rate=None), 1) is None
    assert _rate_of_member(cause_of(ENVS), replace(ENVS, bytes_rate=7.06), 1) == 7.1
    assert _count_rate(replace(ENVS, growth=growing(1.23456))) == 1.235


@pytest.mark.parametrize(
    ("status", "witnesses", "confidence"),
    [
        ("suspected", (), 0.85), ("suspected", ("counts",), 0.88),
        ("suspected", ("counts", "steady", "measured", "container"), 0.97),
        ("suspected", ("counts", "steady", "measured", "container", "together"), 0.98),
        ("confirmed", ("counts",), 0.99), ("recovered", (), 0.9), ("watch", (), 0.6), ("filling", (), 0.6),
        ("ok", (), 0.9), ("learning", (), 0.3),
    ],
)  # fmt: skip
def test_each_witness_raises_the_confidence_but_never_to_one(
    status: Status, witnesses: tuple[str, ...], confidence: float
) -> None:
    assert _confidence(_standing(assessed(cause_of(ENVS), *witnesses), status)) == confidence


def _marked(*values: object) -> tuple[Event, ...]:
    return tuple(Event(0, 0.0, "mark", "m", data={"tfjs_memory_unreliable": v}) for v in values)


@pytest.mark.parametrize(
    ("name", "events", "environment", "said"),
    [
        ("tf.Tensor", _marked(False), {"tfjs_memory_unreliable": True}, "For part of this run,"),
        ("tf.Tensor", _marked(None), {"tfjs_memory_unreliable": True}, "On this backend,"),
        ("tf.Tensor", (), {"tfjs_memory_unreliable": False}, None),
        ("tf.Tensor", (), {}, None),
        ("torch.Tensor", _marked(True), {"tfjs_memory_unreliable": True}, None),
    ],
)
def test_unreliable_tensorflow_bytes_are_called_an_upper_bound(
    name: str, events: tuple[Event, ...], environment: dict[str, object], said: str | None
) -> None:
    history = ends_history({"tfjs.bytes": FLAT}, events=events, environment=environment)
    lines = _upper_bound_lines(study_of(history), assessed(cause_of(candidate(name, "tensor"))))
    assert [line.split(" TensorFlow")[0] for line in lines] == ([said] if said else [])


def test_a_surplus_that_is_not_garbage_outlived_a_collection() -> None:
    unproven = replace(BROKEN, proven=False)
    accepted = replace(BROKEN, expectation=Expectation("Env", 2, 2, accepted=True))

    def evidence(violation: Violation | None, kind: Kind = "objects") -> list[str]:
        cause = cause_of(replace(ENVS, violation=violation), kind=kind)
        return _contract_lines(assessed(cause))

    outlived = "; the surplus outlived a collection or was seen again"
    assert evidence(BROKEN) == [f"Env count is 3, declared 0 to 1{outlived}."]
    assert evidence(BROKEN, "cyclic_garbage") == ["Env count is 3, declared 0 to 1."]
    assert evidence(unproven) == ["Env count is 3, declared 0 to 1."]
    assert evidence(accepted) == [f"Env count is 3, accepted as 2{outlived}."]
    assert evidence(None) == []


@pytest.mark.parametrize(
    ("growth", "said"),
    [
        (growing(2, rises=9), "grows by 2 per generation, the same in each of the last 9 generations."),
        (growing(2, pattern="periodic", rises=9, each=8, period=4), "grows by 8 every 4th generation, seen 9 times."),
        (growing(2, pattern="irregular", rises=3), "grows by 2 per generation on average: 3 rises, never reversed."),
        (growing(2, pattern="irregular", rises=2), None),
        (growing(0.5, pattern="irregular", rises=1, each=7), "rose by 7."),
        (growing(0, pattern="irregular", rises=1, each=7), None),
        (growing(2, pattern="noisy", rises=1), "grows by 2 per generation, despite noise."),
    ],
)  # fmt: skip
def test_the_sentence_on_a_count_follows_its_pattern(growth: Any, said: str | None) -> None:
    lines = [] if said is None else [f"The number of Env {said}"]
    assert _count_lines(study_of(), assessed(cause_of(replace(ENVS, growth=growth)))) == lines


def test_the_growth_per_execution_of_a_phase_is_given() -> None:
    once, twice = (study_of(phase__train__executions=[n] * 12).timeline for n in (1, 2))
    for path in ("train", None):
        member = candidate("E", "object", slope=12, place=Place("train", path, 1.0))
        said = ": 6 per execution of train, which ran twice in each"
        assert _per_execution(twice, member) == said
        assert _per_execution(once, member) == _per_execution(study_of().timeline, member) == ""
    assert _per_execution(twice, replace(member, place=NOWHERE)) == ""


RATE = Slope(2048.0, 1024.0, 3072.0, 16)
GROWS = "Memory grows by +2.00 KiB per generation (1.00 KiB to 3.00 KiB, 90 %)."


@pytest.mark.parametrize(
    ("rate", "rise", "in_a_row", "said"),
    [
        (RATE, Rise(), 0, [GROWS]),
        (RATE, Rise(window=8, generations=9), 0, [GROWS, "The rise holds over 9 generations."]),
        (RATE, Rise(window=8, generations=9), 2, [GROWS, "The rise holds over 9 generations, seen twice in a row."]),
        (replace(RATE, points=2), Rise(), 0, [GROWS]),
        (replace(RATE, points=1), Rise(), 0, []),
        (replace(RATE, estimate=0.0), Rise(window=8), 0, []),
        (replace(RATE, estimate=-1.0), Rise(window=8), 0, []),
    ],
    ids=["no window", "not seen before", "twice", "two readings", "one reading", "flat", "falls"],
)  # fmt: skip
def test_the_line_on_memory_needs_two_readings(
    rate: Slope, rise: Rise, in_a_row: int, said: list[str]
) -> None:
    a = assessed(cause_of(ENVS, rate=rate), rise=rise)
    assert _memory_lines(a, in_a_row, "generation") == said


def test_memory_that_swings_with_the_collector_has_its_own_line() -> None:
    (line,) = _memory_lines(assessed(cause_of(rate=RATE), garbage=5000.0), 3, "generation")
    assert line.startswith("The collector frees 5,000 objects in reference cycles per generation")


def test_measured_objects_explain_at_most_100_percent() -> None:
    for measured, rate, said in (
        (0.25, 0.5, ["Measured objects explain 50 % of the growth: 0 B per generation."]),
        (90.0, 40.0, ["Measured objects explain 100 % of the growth: 90 B per generation."]),
        (30.0, 0.0, []), (None, 40.0, []),
    ):  # fmt: skip
        a = assessed(cause_of(ENVS, measured=measured, rate=rate))
        assert _explained_lines(study_of(), a, "generation") == said


@pytest.mark.parametrize(
    ("kind", "channel", "members", "said"),
    [
        ("tensors", "private", (), "The number of tensors does not grow with memory"),
        ("tensors", "private", (ENVS,), "Measured objects explain"),
        ("objects", "js.heap_bytes", (), "The JavaScript heap grows"),
        ("objects", "js.kept", (), "The memory that V8 keeps after a collection grows"),
        (
            "objects",
            "process.rss_bytes",
            (),
            "Resident memory grows even if tensors are subtracted",
        ),
        ("allocator_retained", "private", (), "The C allocator keeps freed memory"),
        ("gpu_fragmentation", "cuda.0.reserved_bytes", (), "Reserved device memory grows"),
        ("gpu", "gpu.0.outside_bytes", (), "The driver counts this memory"),
        ("gpu", "gpu.0.process_bytes", (), "Measured objects explain"),
        ("gpu", "cuda.0.outside_bytes", (), "Measured objects explain"),
    ],
)
def test_the_explanation_of_a_growth_follows_its_channel(
    kind: Kind, channel: str, members: tuple[Candidate, ...], said: str
) -> None:
    a = assessed(cause_of(*members, kind=kind, measured=30.0, rate=40.0), channel=channel)
    (line,) = _explained_lines(study_of(), a, "generation")
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("looks", "unknown", "said"),
    [
        (None, "outside", "The process is observed from outside, where Python objects cannot be counted, "
         "so it is not known what grows."),
        (
            [1] + [None] * 11, "rarely_counted",
            "Since the growth began, objects have been counted too rarely to identify what grows.",
        ),
        ([1] * 12, None, "No counted Python object explains the growth."),
    ],
)  # fmt: skip
def test_native_growth_says_how_thoroughly_objects_were_counted(
    looks: list[Value] | None, unknown: str | None, said: str
) -> None:
    study = study_of() if looks is None else study_of(python__objects=looks)
    native = assessed(cause_of(kind="native", rate=40.0))
    assert _unknown(study, native) == unknown
    assert _explained_lines(study, native, "generation") == [said]
    assert _unknown(study, assessed(cause_of(kind="objects", rate=40.0))) is None


@pytest.mark.parametrize(
    ("at", "start", "rarely"),
    [({4, 9}, 5.0, False), ({3, 9}, 5.0, True), ({9}, None, True), ({0, 1}, None, False), (set(), 5.0, True)],
    ids=["one just before", "one long before", "one look", "two looks", "no look"],
)  # fmt: skip
def test_two_censuses_suffice_if_one_is_just_before_the_start(
    at: set[int], start: float | None, rarely: bool
) -> None:
    timeline = study_of(python__objects=[1 if g in at else None for g in range(12)]).timeline
    begin = None if start is None else (start, start - 3, start + 3)
    assert _counted_too_rarely(timeline, assessed(cause_of(), start=begin)) == rarely
    # A program whose heap is never scanned is not counted too rarely.
    assert _counted_too_rarely(study_of().timeline, assessed(cause_of())) is False


def test_the_line_on_the_phase_gives_its_share() -> None:
    places = (Place("train", "train", 0.756), Place("train", "train", None), SPREAD)
    lines = [_phase_lines(assessed(cause_of(place=place))) for place in places]
    assert lines == [["76 % of the growth comes from train."], ["The growth comes from train."], []]


@pytest.mark.parametrize(
    ("measured", "rate", "window", "said"),
    [
        (1.0, 9.0, 10.0, "1 B per generation, 2.00% of memory within the next 20"),
        (None, 2.0, 10.0, "2 B per generation, 4.00% of memory within the next 20"),
        (None, -2.0, 10.0, "0 B per generation, 0.00% of memory within the next 20"),
        (1.0, 0.0, 0.5, "1 B per generation, 0.20% of memory within the next 2"),
        (1.0, 0.0, 80.0, "1 B per generation, 10.00% of memory within the next 100"),
    ],
    ids=["measured", "unmeasured", "falls", "just begun", "no further than a hundred"],
)
def test_trivial_growth_says_how_little_it_is(
    measured: float | None, rate: float, window: float, said: str
) -> None:
    a = assessed(cause_of(ENVS, measured=measured, rate=rate), window=window)
    assert _harmless(a, "generation") == f"The growth does not matter: {said} generations."


@pytest.mark.parametrize(
    ("family", "name", "measured", "slope", "expected"),
    [
        ("container", "app.log", 1024.0, 1.0, True), ("container", "app.log", 1023.0, 15.9, False),
        ("container", "app.log", None, 16.0, True), ("object", "app.Env", 1024.0, 1.0, True),
        ("tensor", "torch.Tensor", 1024.0, 16.0, False), ("tensor", "tf.Tensor", 1024.0, 1.0, True),
        ("plain", "dict", 1e6, 100.0, False),
    ],
)  # fmt: skip
def test_trivial_growth_is_a_finding_above_a_minimum(
    family: Family, name: str, measured: float | None, slope: float, expected: bool
) -> None:
    cause = cause_of(candidate(name, family, slope=slope), measured=measured)
    assert worth_reporting(_standing(assessed(cause), "ok")) == expected
    assert worth_reporting(_standing(assessed(cause), "suspected"))
    assert not worth_reporting(_standing(assessed(cause_of(measured=1e6)), "ok"))


DICT = candidate("dict", "plain")


@pytest.mark.parametrize(
    ("members", "rate", "garbage", "idle"),
    [
        ((DICT,), 0.4, None, True), ((DICT,), -5.0, None, True), ((DICT,), 0.6, None, False),
        ((DICT,), 0.0, 9.0, False), ((DICT, candidate("json.Decoder", "library")), 0.0, None, True),
        ((DICT, ENVS), 0.0, None, False), ((replace(DICT, declared=True),), 0.0, None, False),
        ((replace(DICT, violation=BROKEN),), 0.0, None, False),
        ((replace(DICT, role="container"),), 0.0, None, False), ((), 0.0, None, False),
    ],
    ids=["less than a byte", "falls", "a byte", "garbage", "of a library", "of the program", "declared",
         "broken", "a list of them", "nothing"],
)  # fmt: skip
def test_plain_types_without_growth_are_not_a_finding(
    members: tuple[Candidate, ...], rate: float, garbage: float | None, idle: bool
) -> None:
    a = assessed(cause_of(*members, rate=rate), garbage=garbage)
    assert _is_idle(a) == idle
    assert worth_reporting(_standing(a, "watch")) == (not idle)
    assert worth_reporting(_standing(a, "recovered"))


def _finding(fingerprint: str, status: Status, rate: float, **more: Any) -> Finding:
    growth = Interval(rate, rate / 2, rate * 2)
    return Finding(fingerprint, status, "objects", "train", 1.0, (), growth, None, 0.9, **more)


def test_findings_are_sorted_by_activity_size_and_name() -> None:
    ordered = [
        _finding("b", "suspected", 9.0), _finding("a", "confirmed", 5.0), _finding("c", "suspected", 5.0),
        _finding("a", "watch", 99.0), _finding("a", "ok", 999.0), _finding("b", "recovered", 99.0),
    ]  # fmt: skip
    mixed = ordered[::-1]
    assert sorted(mixed, key=rank_key) == ordered


@pytest.mark.parametrize(
    ("a", "b", "priority"),
    [
        ((0.5 * GB, "minor"), (0.5 * GB, "minor"), "major"),
        ((0.4 * GB, "minor"), (0.5 * GB, "minor"), "minor"),
        ((0.4 * GB, "minor"), (0.5 * GB, "major"), "major"),
        ((0.6 * GB, "major"), (0.6 * GB, "minor"), "critical"),
    ],
    ids=["together a gigabyte", "less", "one lies deeper", "deeper and more"],
)
def test_equally_leaking_ranks_are_one_finding_with_their_total_growth(
    a: tuple[float, Any], b: tuple[float, Any], priority: str
) -> None:
    one = _finding("f", "suspected", a[0], priority=a[1], process="rank 0 main")
    other = _finding("f", "confirmed", b[0], priority=b[1], process="rank 1 main")
    (merged,) = merge_alike([one, other], DEFAULTS)
    total = a[0] + b[0]
    assert merged.growth_bytes_per_generation == Interval(total, total / 2, total * 2)
    assert (merged.status, merged.priority) == ("confirmed", priority)
    assert merged.process == "rank 0 main, rank 1 main"


def test_different_fingerprints_stay_separate_findings() -> None:
    found = [_finding("a", "ok", 1.0), _finding("b", "confirmed", 1.0)]
    assert merge_alike(found, DEFAULTS) == found[::-1]


def _built(a: Assessed, status: Status, *events: Event, several: bool = False) -> Finding:
    study = study_of(ends_history({"process.anon_bytes": FLAT}, events=events))
    limits = Priorities(major_bytes=10.0, critical_bytes=100.0)
    return build_finding(study, _standing(a, status), several, limits)


VAIN = Event(3, 5.0, "cleanup", "agent", 9, None, {"freed_bytes": 0})


@pytest.mark.parametrize(
    ("status", "rate", "priority"),
    [
        ("suspected", 0.5, "major"), ("confirmed", 10.0, "critical"), ("suspected", 0.4, "minor"),
        ("watch", 0.5, "minor"),
    ],
    ids=["matters", "confirmed", "too little", "no alarm"],
)  # fmt: skip
def test_ineffective_cleanups_raise_the_priority(
    status: Status, rate: float, priority: str
) -> None:
    """0.5 of 1,000 bytes in each of 100 generations makes a twentieth, which matters."""
    finding = _built(assessed(cause_of(ENVS, rate=rate)), status, VAIN, VAIN)
    assert finding.priority == priority


def test_a_finding_has_all_known_facts() -> None:
    cause = cause_of(ENVS, place=Place("train", "train/step", 0.66666), rate=Slope(20, 10, 30, 16))
    finding = _built(assessed(cause, "counts", start=(4.0, 3.0, 5.0)), "suspected", several=True)
    assert finding.growth_bytes_per_generation == Interval(20, 10, 30)
    assert finding.started_at_generation == Interval(4.0, 3.0, 5.0)
    place = (finding.phase, finding.phase_path, finding.phase_share)
    assert place == ("train", "train/step", 0.667)
    assert (finding.kind, finding.priority, finding.process) == ("objects", "major", "rank 0 main")
    assert finding.advice
    assert _built(assessed(cause_of(STILL)), "suspected").kind == "count_contract"


def test_trivial_findings_get_no_advice_and_say_so() -> None:
    a = assessed(cause_of(ENVS, rate=0.1), start=None)
    finding = _built(a, "ok")
    assert (finding.advice, finding.started_at_generation, finding.process) == ((), None, None)
    assert finding.evidence[-1].startswith("The growth does not matter")
    assert not any("matter" in line for line in _built(a, "watch").evidence)
    assert not any("matter" in line for line in _built(assessed(cause_of()), "ok").evidence)
    assert _built(a, "recovered").evidence[-1] == "The growth has stopped."
    assert "The growth has stopped." not in _built(a, "watch").evidence


def test_a_note_and_waiting_garbage_come_first() -> None:
    a = assessed(
        cause_of(ENVS, place=TRAIN, rate=sure(9.0)), note="A note.", waiting=Waiting(5000.0)
    )
    first, second, *_ = _built(a, "suspected").evidence
    assert first == "A note."
    assert second.startswith("5,000 objects wait for the collector")


@pytest.mark.parametrize(
    ("old", "new", "percent", "same"),
    [
        (100, 104.9, 4.9, True), (100, 105, 5.0, False), (100, 95, -5.0, False), (0, 0, 0.0, True),
        (0, 3, None, False), (None, 1, None, None),
    ],
)  # fmt: skip
def test_a_gauge_is_the_same_within_five_percent(
    old: float | None, new: float | None, percent: float | None, same: bool | None
) -> None:
    assert _change("gauge.x", old, new) == GaugeChange("x", old, new, percent, same)


def test_a_gauge_is_the_median_over_processes_and_shared_generations() -> None:
    timelines = [
        timeline_from_rows({"gauge.x": [1, 2, 3, None]}),
        timeline_from_rows({"gauge.x": [10, 20, 30, 40]}),
        timeline_from_rows({"y": [5]}),
    ]
    assert _median(timelines, "gauge.x", {1, 2, 3}) == 20
    assert _median(timelines, "gauge.x", {9}) is None
    assert gauges_of(timeline_from_rows({"gauge.b": [1], "js.frames_per_second": [1], "gauge.a": [1], "x": [1]})) == [
        "gauge.a", "gauge.b", "js.frames_per_second",
    ]  # fmt: skip
    assert title("js.frames_per_second") == "frames per second"


def test_at_most_forty_gauges_are_compared() -> None:
    many = timeline_from_rows({f"gauge.g{i:02}": [1] for i in range(45)})
    assert [c.gauge for c in compared([many], [], {0})] == [f"g{i:02}" for i in range(40)]


def gauge_with_memory(
    values: Sequence[Value], memory: Sequence[Value] | None = None, name: str = "gauge.x"
) -> Timeline:
    rising = [100 + 10 * i for i in range(len(values))]
    return timeline_from_rows(
        {"process.rss_bytes": rising if memory is None else memory, name: values}
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([60, 57, 54, 51, 48, 45, 42, 39], "x fell from 58.5 to 40.5 while memory rose (rank correlation -1.00)."),
        ([10, 11, 12, 13, 14, 15, 16, 17], "x rose from 10.5 to 16.5 while memory rose (rank correlation +1.00)."),
        # At least eight readings are needed,
        ([60, 57, 54, 51, 48, 45, 42], None),
        # which have changed by a fifth of the larger end
        ([100, 100, 99, 98, 97, 96, 81, 81], None),
        ([100, 100, 99, 98, 97, 96, 80, 80], "x fell from 100 to 80 while memory rose (rank correlation -0.99)."),
        # and almost always move with memory.
        ([60, 57, 42, 39, 48, 45, 54, 51], None),
    ],
)  # fmt: skip
def test_a_gauge_that_moves_with_memory_has_a_line(
    values: list[Value], expected: str | None
) -> None:
    assert companions(gauge_with_memory(values)) == (() if expected is None else (expected,))


def test_a_gauge_has_no_line_without_a_recent_rise_of_memory() -> None:
    falling: list[Value] = [60, 57, 54, 51, 48, 45, 42, 39]
    assert companions(gauge_with_memory(falling, [200 - i for i in range(8)])) == ()
    assert companions(gauge_with_memory(falling, [200] * 8)) == ()
    # Only the newest 64 readings count.
    for flat, expected in ((64, 0), (20, 1)):
        assert len(companions(gauge_with_memory([*range(20), *[20] * flat]))) == expected


def test_the_two_clearest_gauges_are_evidence() -> None:
    memory = [100 + 10 * i for i in range(8)]
    falls, rises = [80, 70, 60, 50, 40, 30, 20, 10], [1, 2, 3, 4, 5, 6, 8, 7]
    timeline = timeline_from_rows({
        "process.rss_bytes": memory, "gauge.a": rises, "gauge.b": falls, "gauge.c": falls, "gauge.d": falls,
    })  # fmt: skip
    leak = _finding("f", "suspected", 1.0, evidence=("Before.",))
    found = with_companions(leak, timeline).evidence
    assert [line.split()[0] for line in found] == ["Before.", "b", "c"]
    watched = replace(leak, status="watch")
    assert with_companions(watched, timeline) is watched
    assert with_companions(leak, timeline_from_rows({"process.rss_bytes": memory})) is leak


def test_a_frame_rate_that_falls_as_memory_rises_is_evidence() -> None:
    falling = {"js.frames_per_second": lambda g: 60.0 - 1.6 * g}
    leaking = Training(generations=24, leaks=(kept_environments(),)).history()
    finding = examine(with_series(leaking, falling)).findings[0]
    (line,) = [line for line in finding.evidence if line.startswith("frames per second fell from ")]
    assert "while memory rose (rank correlation -" in line
    healthy = with_series(Training(generations=24).history(), falling)
    assert not any(f.status in ("suspected", "confirmed") for f in examine(healthy).findings)


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 400], 1.0), ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [5, 5, 5, 5], 0.0), ([1, 2, 2, 3], [1, 2, 2, 3], 1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),
    ],
)  # fmt: skip
def test_rank_correlation_is_spearmans(a: list[float], b: list[float], found: float) -> None:
    assert rank_correlation(a, b) == pytest.approx(found)


FORGES = {"repository": "https://github.com/a/b.git", "commit": "0123abc"}


@pytest.mark.parametrize(
    ("environment", "link"),
    [
        (FORGES, "https://github.com/a/b/commit/0123abc"),
        (dict(FORGES, repository="git@gitlab.com:a/b/c.git"), "https://gitlab.com/a/b/c/-/commit/0123abc"),
        (dict(FORGES, repository="ssh://git@codeberg.org:22/a/b"), "https://codeberg.org/a/b/commit/0123abc"),
        (dict(FORGES, repository="https://me@bitbucket.org/a/b/"), "https://bitbucket.org/a/b/commits/0123abc"),
        (dict(FORGES, repository="https://example.org/a/b"), None),
        (dict(FORGES, repository="https://github.com/a/../b"), None), (dict(FORGES, commit=None), None),
    ],
)  # fmt: skip
def test_commits_are_linked_on_known_forges(environment: dict[str, Any], link: str | None) -> None:
    assert commit_link(environment) == link


@pytest.mark.parametrize(
    ("location", "below"),
    [
        ("training/trainer.py:281", "training/trainer.py#L281"), ("a.py:1234567", "a.py#L1234567"),
        ("a.py:12345678", None), ("a.py", None),
    ],
)  # fmt: skip
def test_a_line_of_code_is_linked_at_its_commit(location: object, below: str | None) -> None:
    link = None if below is None else f"https://github.com/a/b/blob/0123abc/{below}"
    assert code_link(FORGES, location) == link


@pytest.mark.parametrize(
    ("phase", "path", "location"),
    [
        # The nested phase is more specific than its parent.
        ("train", "train/fit", "fit.py:1"), (None, "train/add", "train.py:1"), (None, None, None),
    ],
)  # fmt: skip
def test_a_finding_is_located_by_the_fix_of_its_phase(
    phase: str | None, path: str | None, location: str | None
) -> None:
    fixes = {"train": "train.py:1", "train/fit": "fit.py:1", "evolve": None, None: "none.py:1"}
    events = tuple(
        Event(0, 0.0, "fix", f"{n}", data={"phase": where, "location": line})
        for n, (where, line) in enumerate(fixes.items())
    )
    leak = replace(_finding("f", "confirmed", 1.0), phase=phase, phase_path=path)
    (found,) = located([leak], RunHistory("r", events=events, environment=FORGES))
    assert found.location == location
    assert (found.location_link is not None) is (location is not None)
