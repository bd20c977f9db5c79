"""Marks on the trend: events, incidents, alerts, and the effect of a fix; and which memory is accounted for."""

from __future__ import annotations

from typing import Any

from leakline.sampling.cuda_cache import CacheFall
from leakline_server.charts.chart_parts import Axis, Mark
from leakline_server.web.run_page import inventory_tables
from leakline_server.web.run_page.annotations import (
    MAX_CACHES,
    MAX_COLLECTIONS,
    MAX_MARKS,
    Clock,
    Note,
    fix_effects,
    marks,
)
from leakline_server.web.run_page.counted_objects import accounted
from leakline_server.web.run_page.view import progress

MIB, GIB = 2**20, 2**30
RUN: dict[str, Any] = {
    "unit": "generation", "started_at": "1970-01-01T00:00:00.000+00:00", "attempts": [], "attempts_left_out": 0,
    "notes": [], "last_seen_at": "1970-01-01T00:20:00.000+00:00",
}  # fmt: skip
CLOCK = Clock([100.0, 200.0, 300.0], [0, 1, 2])


def event(
    kind: str, name: str = "x", time: float = 150.0, generation: int | None = None, **data: Any
) -> dict[str, Any]:
    return {"kind": kind, "name": name, "time": time, "generation": generation, "data": data}


def made(*events: dict[str, Any], **more: Any) -> tuple[Mark, ...]:
    run, axis, clock = (
        more.get("run", RUN),
        more.get("axis", Axis("generation")),
        more.get("clock", CLOCK),
    )
    effects = fix_effects(events, more.get("verdict"), more.get("effects", ()), run["unit"])
    beside = (more.get(name, ()) for name in ("notes", "incidents", "alerts"))
    return marks(run, events, *beside, effects, axis, clock)


def test_nothing_is_marked_before_a_generation_has_ended_or_of_other_events() -> None:
    assert made(event("mark"), clock=Clock((), ())) == ()
    assert made(event("expect"), event("track"), event("watch"), event("note")) == ()


def test_what_has_no_generation_belongs_to_the_end_of_the_one_it_fell_in() -> None:
    moments = (event("mark", time=time) for time in (1.0, 150.0, 999.0))
    before, within, after = made(*moments)
    assert (before.x, within.x, after.x) == (0, 1, 2)
    assert made(event("mark", time=150.0, generation=7))[0].x == 7


def test_without_generations_a_mark_lies_at_its_minute() -> None:
    (found,) = made(event("mark", time=150.0), axis=Axis("minutes", "time", 60))
    assert found.x == 2.5


def test_attempts_incidents_notes_and_cleanups_are_told() -> None:
    attempts = [{"number": n, "started_at": f"1970-01-01T00:0{n}:00.000+00:00"} for n in (1, 2)]
    opened = "1970-01-01T00:02:00.000+00:00"
    incident = {"first_seen_at": opened, "status": "confirmed", "summary": "train keeps 1 GiB"}
    found = made(
        event("cleanup", "agent", freed_bytes=2 * MIB),
        run={**RUN, "attempts": attempts}, incidents=[incident], notes=[Note(250.0, None, "a person", "see", None)],
    )  # fmt: skip
    told = {mark.kind: (mark.x, mark.text) for mark in found}
    assert told["attempt"] == (1, "attempt 2 begins")
    assert told["incident"] == (1, "confirmed: train keeps 1 GiB")
    assert told["note"] == (2, "see")
    assert told["cleanup"] == (1, "agent: freed 2.00 MiB")


def test_a_cleanup_says_what_it_freed_on_a_device_and_is_marked_only_where_that_is_nothing() -> (
    None
):
    for before, said, rating in (
        (8, "agent: freed 7.00 GiB of GPU memory", None),
        (1, "agent: freed nothing", "watch"),
    ):
        devices = {"cuda.0.reserved_bytes": [before * GIB, GIB]}
        told = event("cleanup", "agent", freed_bytes=-4096, devices=devices)
        assert made(told)[0].text == said
        section = inventory_tables.events([told], "generation")
        assert section is not None and section.table is not None
        cell = section.table.rows[0].cells[-1]
        assert cell.text == said.removeprefix("agent: ")
        assert cell.status == rating


def test_a_full_collection_is_marked_with_the_bytes_that_memory_fell_by_across_it() -> None:
    collected = {"freed": 1_000, "seconds": 0.5}
    texts = [
        mark.text
        for resident in ([30 * MIB, 10 * MIB], [10 * MIB, 30 * MIB], [None, "x"], None)
        for mark in made(event("collection", "full", **collected, resident_bytes=resident))
    ]
    assert texts[0] == "full collection: freed 1,000 objects, at least 20.00 MiB, in 0.50 s"
    # The allocator kept it, or nobody read it: not known is not nothing.
    assert texts[1:] == ["full collection: freed 1,000 objects of unknown size in 0.50 s"] * 3
    (nothing,) = made(event("collection", "full", freed=0, seconds=0.5))
    assert (nothing.kind, nothing.text) == (
        "cleanup", "full collection: freed 0 objects in 0.50 s"
    )  # fmt: skip


def test_collections_push_no_cleanup_aside() -> None:
    collections = [event("collection", "full", freed=1) for _ in range(1_000)]
    found = made(event("cleanup", "agent", freed_bytes=1), *collections)
    assert [mark.label for mark in found].count("full collection") == MAX_COLLECTIONS
    assert "agent" in {mark.label for mark in found}


def test_an_emptied_cache_of_a_device_is_marked_with_what_it_gave_back() -> None:
    name, data = CacheFall("cuda.0", 10 * GIB, 7 * GIB).told
    (found,) = made(event("mark", name, **data))
    assert (found.kind, found.label) == ("mark", "cache of cuda.0")
    assert found.text == (
        "cache of cuda.0: gave at least 3.00 GiB back to the device: 10.00 GiB kept before, 7.00 GiB after"
    )


def test_emptied_caches_push_no_word_of_a_person_aside() -> None:
    name, data = CacheFall("cuda.0", 10 * GIB, 7 * GIB).told
    caches = [event("mark", name, generation=i, **data) for i in range(10, 500)]
    found = made(event("fix", "bound", generation=5), event("mark", "note", generation=6), *caches)
    assert {"bound", "note"} <= {mark.label for mark in found}
    assert [mark.label for mark in found].count(name) == MAX_CACHES


def test_a_rule_that_fired_lies_at_its_generation_and_a_forecast_at_its_moment() -> None:
    rule = {
        "payload": {
            "rule": {"name": "many", "status": "firing"}, "when": {"generation": 2},
            "summary": "tensors.count is 612 at generation 2: above 500",
        },
        "created_at": 150.0, "event": "rule.fired",
    }  # fmt: skip
    risk = {
        "payload": {"when": {}, "summary": "Risk high: soon"},
        "created_at": 150.0,
        "event": "oom.risk",
    }
    # Of an incident there is a sign already.
    incident = {**risk, "event": "incident.suspected"}
    first, second = made(alerts=(rule, risk, incident))
    assert (first.kind, first.x, first.text) == ("alert", 1, "Risk high: soon")
    assert second.x == 2
    assert second.text == "many fired: tensors.count is 612 at generation 2: above 500"
    over = {**rule["payload"], "rule": {"name": "many", "status": "resolved"}}
    assert made(alerts=[{**rule, "payload": over}])[0].text.startswith("many is over: ")


def test_what_was_found_long_after_a_run_lies_at_its_end() -> None:
    late = {"payload": {"when": {}, "summary": "late"}, "created_at": 1e9, "event": "oom.risk"}
    incident = {
        "first_seen_at": "2020-01-01T00:00:00.000+00:00",
        "status": "confirmed",
        "summary": "x",
    }
    found = made(alerts=[late], incidents=[incident], axis=Axis("minutes", "time", 60))
    assert [mark.x for mark in found] == [20, 20]


def test_the_mark_of_an_incident_says_its_word_once() -> None:
    at = {"first_seen_at": "1970-01-01T00:02:00.000+00:00", "status": "recovered"}
    (found,) = made(incidents=[{**at, "summary": "Recovered: it no longer grows"}])
    assert found.text == "recovered: it no longer grows"


def test_many_cleanups_push_nothing_else_aside() -> None:
    many = [event("cleanup", "agent", time=float(i), generation=i) for i in range(5_000)]
    found = made(event("mark", "drop", generation=3), *many)
    assert [mark.label for mark in found if mark.kind == "mark"] == ["drop"]
    assert len([mark for mark in found if mark.kind == "cleanup"]) == 300
    assert len(made(*(event("mark", generation=i) for i in range(500)))) == MAX_MARKS


def effect(
    fix: str = "detach", *, after: float = MIB, since: float = 100.0, **more: Any
) -> dict[str, Any]:
    """As the analysis gives it, of 10 MiB before."""
    ends = {
        name: {"estimate": v, "low": v, "high": v}
        for name, v in (("before", 10 * MIB), ("after", after), ("difference", after - 10 * MIB))
    }
    base = {
        "fix": fix, "phase": None, "location": None, "rejected": None, "since": since, "measure": "growth",
        "subject": None, "outcome": "helped", "sentence": "x", **ends,
    }  # fmt: skip
    return {**base, **more}


def test_a_fix_tells_the_growth_on_both_sides_with_a_word_and_what_it_promised() -> None:
    check = {
        "origin": "fix", "name": "detach", "metric": "growth_bytes_per_generation", "high": 2 * MIB, "state": "holds",
        "measured": {"estimate": MIB, "low": MIB, "high": MIB},
    }  # fmt: skip
    (found,) = made(
        event("fix", "detach", generation=10), effects=[effect()], verdict={"assertions": [check]}
    )
    assert found.text.split("\n") == [
        "detach",
        "growth per generation: before +10.00 MiB, after +1.00 MiB: helped, -9.00 MiB",
        "promised 2.00 MiB per generation, measured +1.00 MiB: holds",
    ]


def test_no_effect_is_an_answer_at_a_mark_and_names_what_it_was_compared_with() -> None:
    told = effect(
        after=10 * MIB, outcome="no_effect", measure="phase_growth", subject="evaluate",
        against={"id": "r0", "name": "before-fix", "after": "r1"},
    )  # fmt: skip
    (found,) = made(event("fix", "detach", generation=0), effects=[told])
    assert (
        "against before-fix: evaluate per generation: before +10.00 MiB, after +10.00 MiB: no effect"
        in found.text
    )


def test_the_effect_of_a_fix_is_in_the_table_of_events_too() -> None:
    commit, place = "1f0c9a2b" * 5, "training/trainer.py:281"
    fix = {**event("fix", "detach", generation=10, location=place), "phase": None}
    # One that begins alike, and one before the fix had the form that is judged, have effects of their own.
    twin = {**fix, "name": "detach" + "h" * 200, "generation": 2}
    again = {**fix, "time": 50.0, "generation": 4}
    told = [effect(), effect(twin["name"], after=2 * MIB)]
    effects = fix_effects([fix, twin, again], None, told, "generation")
    assert [len(each) for each in effects.values()] == [1, 1, 0]
    assert len(set(map(tuple, effects.values()))) == 3
    environment = {"repository": "git@github.com:erl/trading.git", "commit": commit}
    section = inventory_tables.events([fix], "generation", environment, effects)
    assert section is not None and section.table is not None
    cell = section.table.rows[0].cells[-1]
    assert cell.text.startswith(
        f"{place}; growth per generation: before +10.00 MiB, after +1.00 MiB"
    )
    assert (
        cell.outside and cell.href is not None and cell.href.endswith("/training/trainer.py#L281")
    )


def test_a_fix_with_too_little_on_one_side_says_so() -> None:
    unknown = effect(outcome="undecided", before=None, sentence="Too few generations ran before.")
    (found,) = made(event("fix", "detach", generation=2), effects=[unknown])
    assert found.text.split("\n")[1] == "not decidable: Too few generations ran before."
    (alone,) = made(event("fix", "detach", generation=2))
    assert alone.text == "detach"


def test_a_text_too_long_for_a_hover_is_cut() -> None:
    (found,) = made(event("mark", "y" * 5_000, generation=1))
    assert len(found.text) <= 160 and found.text.endswith("…")


def test_memory_that_nobody_measured_is_never_called_explained() -> None:
    assert accounted(None, {"arrays.bytes": 5.0}, None) == ""
    assert accounted(GIB, {}, None) == ""
    told = accounted(GIB, {"arrays.bytes": GIB / 4}, None)
    assert told.startswith("25 % of 1.00 GiB private memory is accounted for: arrays 256.00 MiB.")
    assert "Not measured: tensors, other objects, freed but kept by the C allocator." in told


def test_each_byte_is_accounted_for_once() -> None:
    apart = [["numpy.ndarray", 9, GIB], ["torch.Tensor", 9, GIB]]
    census = {"types": [*apart, ["dict", 9, 64 * MIB], ["app.Env", 2, None]]}
    last = {
        "arrays.bytes": 128.0 * MIB, "tensors.bytes": 300.0 * MIB, "tensors.device_bytes": 200.0 * MIB,
        "tensors.graph_bytes": 28.0 * MIB, "allocator.kept_bytes": 0.0,
    }  # fmt: skip
    told = accounted(GIB, last, census)
    assert told.startswith("31 % of 1.00 GiB private memory is accounted for: arrays 128.00 MiB, ")
    assert "tensors 128.00 MiB, other objects 64.00 MiB" in told
    assert "Not measured" not in told


def test_a_census_tells_of_arrays_where_no_look_has_counted_them() -> None:
    census = {"types": [["numpy.ndarray", 9, GIB // 2], ["app.Env", 2, None]]}
    told = accounted(GIB, {}, census)
    assert told.startswith("50 % of 1.00 GiB private memory is accounted for: arrays 512.00 MiB.")
    assert "Not measured: tensors, other objects" in told


def test_more_than_all_is_said_to_overlap() -> None:
    assert "more than the 1.00 GiB" in accounted(GIB, {"arrays.bytes": 2.0 * GIB}, None)


def test_a_plan_that_was_left_behind_is_no_progress() -> None:
    run = {"total": None, "generations": 12, "unit": "epoch"}
    band = {"origin": "band", "metric": "m", "last": 5}
    bands = {"assertions": [band, {**band, "last": None}]}
    assert progress(run, None) == "12 epochs"
    assert progress(run, bands) == "12 epochs"
    assert progress({**run, "generations": 3}, bands) == "3 of 5 epochs"
    fix = {"origin": "fix", "metric": "generations", "low": 25.0, "last": None}
    promised = {"assertions": [*bands["assertions"], fix]}
    assert progress(run, promised) == "12 of 25 epochs"
    assert progress({**run, "total": 20}, promised) == "12 of 20 epochs"


def test_what_nobody_was_told_is_not_said_to_be_told() -> None:
    payload = {"summary": "Leaking: soon", "when": {"generation": 3}}
    row = {"event": "risk", "created_at": 1e9, "payload": payload}
    told, not_told = (
        inventory_tables.alerts([row], "generation", any_webhook=each) for each in (True, False)
    )
    assert told is not None and told.how.startswith("What was told of this run, to every webhook")
    assert not_told is not None and not_told.how.startswith(
        "What would have been told; no webhook is set up"
    )
