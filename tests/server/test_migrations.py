"""The server migrates a database of any schema to its own with all its data, or leaves it untouched.

Each `schema_NNNN.db` and `schema_NNNN.json` was made with the server of the commit named in `RECORDED`, the last with
that schema, by `tests/data/record_schema.py`: three runs with two ranks, two attempts, a gap, a late batch, every
kind of detail, a sealed segment and alerts that never arrived. The JSON has the answers of that server; that of 0004
also has the batches that were sent to all servers.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import apprise
import msgspec
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, event, insert, inspect, select
from starlette.testclient import TestClient
from tests.server.stored import damage_all_of, engine_of, put_run, seal, serving

from leakline.analysis.assertions.declared_limits import assertion_title
from leakline.analysis.results import AssertionCheck, Finding
from leakline.analysis.run_history import Expectation
from leakline_server.limits import MAX_SKEW_SECONDS
from leakline_server.paths import MIGRATIONS
from leakline_server.store.alerts import assertions
from leakline_server.store.alerts.webhooks import BY_HAND
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.findings import current_verdict, first_verdict
from leakline_server.store.maintenance.quarantine import set_aside
from leakline_server.store.migrate import NewerDatabase, current, downgrade, revisions, upgrade
from leakline_server.store.runs.run_order import sorted_by
from leakline_server.store.schema import alerts, deliveries, metadata, segments, webhooks
from leakline_server.store.schema import assertions as assertions_table
from leakline_server.store.schema import incidents as incidents_table
from leakline_server.store.schema import runs as runs_table


def steps() -> list[str]:
    """Return the revisions in the order of Alembic."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def differences(engine: Engine) -> Any:
    """Return the differences between the tables of the database and those of the code."""
    with engine.connect() as connection:
        # Alembic cannot compare an index of an expression.
        options = {
            "compare_type": True,
            "include_object": lambda _, name, *__: name != "ix_runs_urgency",
        }
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, metadata)


# Older revisions cannot be restored by a downgrade.
KEYS = "0005_keys_begin_with_the_run"


def test_every_step_goes_up_and_down_again_where_it_can(empty_database_url: str) -> None:
    engine, known = open_engine(empty_database_url), steps()
    upgrade(engine, MIGRATIONS, known[known.index(KEYS) - 1])
    downgrade(engine, MIGRATIONS, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]
    for step in known:
        upgrade(engine, MIGRATIONS, step)
        assert current(engine) == step
    assert differences(engine) == []
    downgrade(engine, MIGRATIONS, KEYS)
    with pytest.raises(RuntimeError, match="restore a backup"):
        downgrade(engine, MIGRATIONS, "base")
    assert current(engine) == KEYS
    upgrade(engine, MIGRATIONS)
    assert current(engine) == known[-1]
    assert differences(engine) == []
    engine.dispose()


def test_a_current_database_is_left_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate(*_: object) -> None:
        raise AssertionError("there is nothing to do")

    monkeypatch.setattr(command, "upgrade", migrate)
    upgrade(engine, MIGRATIONS)
    assert current(engine) == steps()[-1]


def test_migration_files_are_named_and_ordered_like_their_revisions() -> None:
    assert revisions(MIGRATIONS) == steps()


def test_a_database_of_a_newer_version_is_refused_with_a_message(engine: Engine) -> None:
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_future'")
    with pytest.raises(NewerDatabase, match=r"9999_future.*newer version of leakline"):
        upgrade(engine, MIGRATIONS)
    assert current(engine) == "9999_future"


def test_a_failed_step_leaves_nothing_behind(empty_database_url: str) -> None:
    engine = open_engine(empty_database_url)
    with writing(engine) as connection:
        # This table conflicts with the second migration.
        connection.exec_driver_sql("CREATE TABLE webhooks (id INTEGER)")
    with pytest.raises(Exception, match="webhooks"):
        upgrade(engine, MIGRATIONS)
    assert inspect(engine).get_table_names() == ["webhooks"]
    engine.dispose()


def test_every_constraint_has_a_name() -> None:
    for table in metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table.name


KNOWN = revisions(MIGRATIONS)
# Schemas that a downgrade can reach; older ones are recorded.
STEPS = KNOWN[KNOWN.index(KEYS) : -1]
# The snapshots of one run: sealed as a block, sealed later, and not sealed yet.
SNAPSHOTS = (300, 200, 40)
# Text that a database, a page, a log, a spreadsheet or a template might interpret.
HOSTILE = (
    "<script>alert(1)</script>", "'; DROP TABLE runs; --", "=HYPERLINK(1)", "%s {0} {{7*7}} :name", "\u202egnp.exe",
    "\U0001f4a5" * 8, "e\u0301\u2028\ufeff", "\\x00\\u0000",
)  # fmt: skip

LONG = "/api/v1/runs/long/series?name=*&x=sequence&points=5000"
OF_A_RUN = (
    "/series?name=*&x=sequence&points=5000", "/series?name=process.rss_bytes&phase=*&points=5000", "/events", "/census",
    "/large-objects", "/holders", "/verdict", "/incidents", "/expectations", "",
)  # fmt: skip
OF_ALL = ("/api/v1/runs", "/api/v1/incidents", "/api/v1/rules", "/api/v1/webhooks")


def filled(url: str, make_run: Any, eventually: Any) -> None:
    with serving(url, webhook_allow=(ip_network("127.0.0.0/8"),)) as api:
        for name, counts in (("long", SNAPSHOTS), ("short", (40,))):
            run, sent = make_run(id=name, instance=name, leak_bytes=300 * 2**20), 0
            run.create(api)
            for number, count in enumerate(counts, 1):
                run.send(api, sent, count)
                sent += count
                if number < len(counts):
                    seal(engine_of(api))
        eventually(lambda: api.get("/api/v1/runs/long/incidents").json()["items"])
        rule = {"name": "Queue", "series": "gauge.queue", "above": 9.5}
        assert api.post("/api/v1/rules", json=rule).status_code == 201
        hook = {"name": "nobody", "url": "http://127.0.0.1:9/x", "format": "standard"}
        assert api.post("/api/v1/webhooks", json=hook).status_code == 201
        changed = {"tags": ["baseline", "ten"], "state": "finished"}
        assert api.patch("/api/v1/runs/short", json=changed).status_code == 200
        hostile = make_run(id="hostile", instance="'--", extra={f"gauge.{HOSTILE[1]}": float})
        config = {text: [text] for text in HOSTILE}
        said = {"name": HOSTILE[0], "config": config, "tags": HOSTILE[:3]}
        assert api.post("/api/v1/runs", json=hostile.header | said).status_code == 201
        hostile.send(api, 0, 40)
        notes = {"notes": [{"text": text} for text in HOSTILE]}
        assert api.patch("/api/v1/runs/hostile", json=notes).status_code == 200


ALL_RUNS = ("long", "short", "hostile")


def answers_of(url: str, runs: Sequence[str] = ALL_RUNS) -> dict[str, Any]:
    """Ask a server whose workers never run, so that nothing changes meanwhile."""
    api = serving(url)
    found = {}
    for path in (*OF_ALL, *(f"/api/v1/runs/{run}{part}" for run in runs for part in OF_A_RUN)):
        answer = api.get(path)
        assert answer.status_code == 200, (path, answer.text)
        found[path] = answer.json()
        # Older schemas have only the revision at which the verdict last changed.
        found[path].pop("verdict_is_current", None)
        if path.endswith(("objects", "holders")):
            # Objects of equal size have no fixed order.
            found[path]["items"].sort(key=lambda row: json.dumps(row, sort_keys=True))
    engine_of(api).dispose()
    return found


def gone_back(url: str) -> Iterator[str]:
    """Downgrade the database step by step and yield each older schema."""
    for step in reversed(STEPS):
        engine = open_engine(url)
        downgrade(engine, MIGRATIONS, step)
        assert current(engine) == step
        engine.dispose()
        yield step


@pytest.mark.long
def test_every_older_schema_reads_the_same(
    database_url: str, make_run: Any, eventually: Any
) -> None:
    filled(database_url, make_run, eventually)
    before = answers_of(database_url)
    assert len(before[LONG]["items"]) >= 6
    for step in gone_back(database_url):
        # Compare everything for the oldest schema.
        now = answers_of(database_url, ALL_RUNS if step == STEPS[0] else ("long",))
        for path, answer in now.items():
            assert before[path] == answer, (step, path)


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_upgrade_sets_damaged_values_aside(
    database_url: str, make_run: Any, tmp_path: Path, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """The upgrade succeeds from any schema, and other runs lose nothing."""
    filled(database_url, make_run, eventually)
    of_others = {
        path: a for path, a in answers_of(database_url).items() if "/runs/short" not in path
    }
    file = Path(open_engine(database_url).url.database or "")
    for step in gone_back(database_url):
        old = tmp_path / f"{step}.db"
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("VACUUM INTO ?", (str(old),))
        damage_all_of("short", old)
        caplog.clear()
        now = answers_of(f"sqlite:///{old}", ("long", "hostile"))
        for path, answer in of_others.items():
            if "/runs/" in path:
                assert now[path] == answer, (step, path)
        said = {run["id"]: run["summary"] for run in now["/api/v1/runs"]["items"]}
        assert said["short"].startswith("Some of the data stored for this run is damaged ("), step
        assert "stored data of run short is damaged" in caplog.text, step
        assert "sk-secret" not in caplog.text and "Traceback" not in caplog.text, step


DISCORD, AZURE = "https://discord.com/api/webhooks", "https://a.logic.azure.com:443/workflows"
POWER = (
    "https://a.b.environment.api.powerplatform.com:443/powerautomate/automations/direct/workflows"
)
INVOKED = "643e69f83c8944/triggers/manual/paths/invoke?api-version=1&sp=%2Fx&sv=1.0&sig=KODuebWb_g"
# Format and address of a webhook -> format and address after the upgrade.
CONVERTED = {
    ("discord", f"{DISCORD}/123/To-ken_1"): ("apprise", f"{DISCORD}/123/To-ken_1"),
    ("discord", "https://canary.discord.com/api/v10/webhooks/123/t?thread_id=9"): (
        "apprise", f"{DISCORD}/123/t?thread=9",
    ),
    ("discord", f"{DISCORD}/123/t/"): ("apprise", f"{DISCORD}/123/t"),
    ("discord", "https://discordapp.com/api/webhooks/123/t"): (
        "apprise", "https://discordapp.com/api/webhooks/123/t",
    ),
    ("teams", f"{AZURE}/{INVOKED}"): ("apprise", f"{AZURE}/{INVOKED}"),
    ("teams", f"{POWER}/{INVOKED}"): ("apprise", f"{POWER}/{INVOKED}"),
    ("slack", "https://hooks.slack.com/services/T/B/x"): ("slack", "https://hooks.slack.com/services/T/B/x"),
}  # fmt: skip
# apprise does not accept these.
DISABLED = (
    ("discord", "https://relay.example/api/v10/webhooks/123/t"),
    ("discord", f"{DISCORD}/123/t/slack"),
    ("teams", "https://a.webhook.office.com/webhookb2/x"),
)


def test_discord_and_teams_webhooks_move_to_apprise_or_say_why_not(engine: Engine) -> None:
    downgrade(engine, MIGRATIONS, "0015_damaged")
    own = {"secret": "whsec_QUJD", "created_at": 1.0, "source": "api"}
    hooks = [{**own, "format": form, "url": url} for form, url in (*CONVERTED, *DISABLED)]
    by_hand = {**own, "format": "teams", "url": "https://x.example/", "disabled_reason": BY_HAND}
    alert = {"id": "a1", "run_id": "r1", "event": "run.killed", "payload": "{}", "created_at": 1.0}
    with writing(engine) as connection:
        connection.execute(insert(webhooks), hooks)
        connection.execute(insert(webhooks).values(enabled=False, **by_hand))
        put_run(connection, "r1", state="running")
        connection.execute(insert(alerts).values(**alert))
        waiting = {"alert_id": "a1", "state": "pending", "due_at": 1.0}
        numbers = connection.scalars(select(webhooks.c.id)).all()
        connection.execute(insert(deliveries), [{**waiting, "webhook_id": n} for n in numbers])
    upgrade(engine, MIGRATIONS)

    w = webhooks.c
    query = select(w.format, w.url, w.enabled, w.disabled_reason, w.secret, deliveries.c.state)
    joined = query.join(deliveries, deliveries.c.webhook_id == w.id).order_by(w.id)
    with engine.connect() as connection:
        found = connection.execute(joined).all()
    assert {row.secret for row in found} == {"whsec_QUJD"}
    converted, failed, by_hand_row = found[: len(CONVERTED)], found[len(CONVERTED) : -1], found[-1]
    assert [(row.format, row.url) for row in converted] == list(CONVERTED.values())
    assert {(row.enabled, row.state) for row in converted} == {(True, "pending")}
    for row in converted:
        assert row.format == "slack" or apprise.Apprise().add(row.url), row.url
    assert [(row.format, row.url) for row in failed] == list(DISABLED)
    for row in failed:
        assert (row.enabled, row.state) == (False, "failed")
        assert f"no longer writes the format {row.format}" in row.disabled_reason
        assert not apprise.Apprise().add(row.url), row.url
    assert (by_hand_row.format, by_hand_row.disabled_reason) == ("teams", BY_HAND)

    downgrade(engine, MIGRATIONS, "0015_damaged")
    with engine.connect() as connection:
        found = connection.execute(joined).all()
    assert [row.format for row in found] == [
        *(form for form, _ in (*CONVERTED, *DISABLED)),
        "teams",
    ]
    assert found[1].url == f"{DISCORD}/123/t?thread_id=9"


def test_a_converted_webhook_can_only_change_to_our_formats(database_url: str) -> None:
    engine, new = open_engine(database_url), "http://127.0.0.1:9/hook"
    own = {"secret": "whsec_QUJD", "created_at": 1.0, "source": "api"}
    with writing(engine) as connection:
        converted = {"format": "apprise", "url": f"{DISCORD}/123/SECRET"}
        connection.execute(insert(webhooks).values(id=1, **converted, **own))
        disabled = {"format": "teams", "url": "https://x.example/", "enabled": False}
        connection.execute(insert(webhooks).values(id=2, disabled_reason="gone", **disabled, **own))
    engine.dispose()
    with serving(database_url, webhook_allow=(ip_network("127.0.0.0/8"),)) as api:
        shown = api.get("/api/v1/webhooks").json()["items"]
        origins = ["apprise https://discord.com", "https://x.example"]
        assert [hook["origin"] for hook in shown] == origins
        page = api.get("/alerts").text
        assert "SECRET" not in page and "/alerts/webhooks/2/enable" not in page
        for number, change in ((1, {"url": new}), (2, {"url": new}), (2, {"enabled": True})):
            answer = api.patch(f"/api/v1/webhooks/{number}", json=change)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_field")
        for change in ({"enabled": False}, {"enabled": True}, {"url": new, "format": "slack"}):
            assert api.patch("/api/v1/webhooks/1", json=change).status_code == 200
        changed = {"url": new, "format": "slack", "enabled": True}
        answer = api.patch("/api/v1/webhooks/2", json=changed)
        assert (answer.json()["origin"], answer.json()["enabled"]) == ("http://127.0.0.1:9", True)


BEFORE_ASSERTIONS = "0016_formats_by_apprise"
BEFORE_NO_STRANDS = "0017_assertions"
# Rows as the server of that schema wrote them: ids with a gap, missing optional values, withdrawn items.
OLD_ROWS: dict[str, list[dict[str, Any]]] = {
    "rules": [
        {"id": 3, "name": "Host", "project": None, "run": None, "series": "process.rss_bytes", "measure": "rate",
         "above": 5e9, "below": None, "hold": 2, "grace": 4, "advice": "Save.", "source": "file", "enabled": True,
         "created_at": 10.5},
        {"id": 7, "name": "Left", "project": "p", "run": "r1", "series": "", "measure": "forecast", "above": None,
         "below": 5.0, "hold": 1, "grace": 3, "advice": "", "source": "api", "enabled": False, "created_at": 11.5},
    ],
    "rule_states": [
        {"id": 1, "rule_id": 3, "run_id": "r1", "firing": True, "generation": 12, "value": 6e9, "since": None,
         "changed_at": 20.5},
        {"id": 2, "rule_id": 7, "run_id": "r1", "firing": False, "generation": None, "value": None, "since": 14,
         "changed_at": 21.5},
    ],
    "accepted_counts": [
        {"id": 1, "project": "p", "type": "app.Env", "phase": None, "low": 1, "high": 2**53, "run": "r1",
         "created_at": 30.5, "ended_at": 31.5},
        {"id": 2, "project": "p", "type": "app.type.count", "phase": "evaluate", "low": 16, "high": 17, "run": "gone",
         "created_at": 32.5, "ended_at": None},
    ],
    "acknowledgements": [
        {"id": 1, "project": "p", "fingerprint": "f1", "kind": "ignored", "reason": "known", "status": "confirmed",
         "priority": "minor", "created_at": 40.5, "expires_at": None, "ended_at": None},
    ],
}  # fmt: skip


def rows_of(engine: Engine, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    found = MetaData()
    found.reflect(engine)
    with engine.connect() as connection:
        return {
            name: [dict(row) for row in connection.execute(select(table).order_by(table.c.id)).mappings()]
            for name in names
            if (table := found.tables[name]) is not None
        }  # fmt: skip


def plant_old_rows(engine: Engine) -> None:
    before = MetaData()
    before.reflect(engine)
    with writing(engine) as connection:
        put_run(connection, "r1", project="p", name="n", state="running")
        for name, rows in OLD_ROWS.items():
            connection.execute(insert(before.tables[name]), rows)


def test_rules_and_accepted_counts_become_assertions(engine: Engine) -> None:
    downgrade(engine, MIGRATIONS, BEFORE_ASSERTIONS)
    plant_old_rows(engine)
    stored = rows_of(engine, OLD_ROWS)
    upgrade(engine, MIGRATIONS)

    host, left = assertions.list_rules(engine)
    said = (host.id, host.name, host.series, host.measure, host.above, host.below, host.hold)
    assert said == (3, "Host", "process.rss_bytes", "rate", 5e9, None, 2)
    said = (host.grace, host.advice, host.source, host.enabled, host.created_at)
    assert said == (4, "Save.", "file", True, 10.5)
    said = (left.id, left.project, left.run, left.measure, left.below)
    assert said == (7, "p", "r1", "forecast", 5.0)
    assert not left.enabled
    with engine.connect() as connection:
        ((rule, state),) = assertions.rules_of(connection, "r1", "p", "n")
    assert (rule, state) == (host, assertions.State(True, 12, 6e9, 20.5))
    (accepted,) = assertions.accepted_in(engine, "p")
    assert accepted == assertions.AcceptedCount(
        Expectation("app.type.count", 16, 17, "evaluate", accepted=True), "gone", 32.5
    )
    assert rows_of(engine, ["acknowledgements"])["acknowledgements"] == stored["acknowledgements"]
    (new,) = assertions.add_rules(engine, [assertions.Terms("New", "s", above=1.0)], "api", 50.0)
    assert new.id > 7
    assertions.remove_rule(engine, new.id)

    downgrade(engine, MIGRATIONS, BEFORE_ASSERTIONS)
    assert rows_of(engine, OLD_ROWS) == stored


CHECKED_BEFORE = {
    "bands": [
        {"series": "process.rss_bytes", "first": 1, "last": 5, "low": None, "high": 40.0, "process": None,
         "state": "outside", "within": 3, "below": 0, "above": 2, "unread": 0, "open": False, "sentence": "Above.",
         "deviations": [{"generation": 4, "measured": 43.0, "off_by": 3.0}]},
        {"series": "process.rss_bytes", "first": 6, "last": None, "low": 1.0, "high": None, "process": None,
         "state": "within", "within": 3, "below": 0, "above": 0, "unread": 0, "open": True, "sentence": "Within.",
         "deviations": []},
    ],
    "budgets": [
        {"name": "train", "scope": "phase", "normal": 1.0, "leak": 9.0, "state": "above_normal", "newest": 2.0,
         "worst": 3.0, "worst_generation": 7, "beyond": 2, "generations": 8, "process": "rank 1 main",
         "sentence": "More."},
    ],
    "fixes": [
        {"fix": "free it", "phase": "train", "location": "a.py:3", "claim": "count:app.Env", "promised": 2.0,
         "measured": {"estimate": 4.0, "low": 4.0, "high": 4.0}, "outcome": "refuted", "sentence": "4 lived."},
        {"fix": "free it", "phase": "train", "location": "a.py:3", "claim": "generations", "promised": 9.0,
         "measured": None, "outcome": "held", "sentence": "It has."},
    ],
}  # fmt: skip


def test_checks_of_an_old_verdict_become_assertions(engine: Engine) -> None:
    """A run that has ended is not examined again: its page and its gate read the old findings."""
    downgrade(engine, MIGRATIONS, "0018_no_strands")
    before = first_verdict("r1", "generation") | CHECKED_BEFORE
    del before["assertions"]
    stored = {"r1": json.dumps(before), "r2": '{"bands": [{"series": 3}]}', "r3": None}
    with writing(engine) as connection:
        for key, text in stored.items():
            put_run(connection, key, verdict=text)
        if connection.dialect.name == "sqlite":
            damaged = "UPDATE runs SET verdict = CAST(X'FF7B' AS TEXT) WHERE id = 'r2'"
            connection.exec_driver_sql(damaged)
    upgrade(engine, MIGRATIONS)
    assert set_aside(engine) == (1 if engine.dialect.name == "sqlite" else 0)

    verdict = current_verdict(engine, "r1") or {}
    assert verdict.keys() & {"bands", "budgets", "fixes"} == set()
    rows = verdict["assertions"]
    assert [(row["origin"], row["name"], row["metric"], row["state"]) for row in rows] == [
        ("band", "process.rss_bytes", "process.rss_bytes", "broken"),
        ("band", "process.rss_bytes", "process.rss_bytes", "open"),
        ("budget", "train", "phase.kept_bytes", "above_normal"),
        ("fix", "free it", "type.app.Env.count", "broken"),
        ("fix", "free it", "generations", "holds"),
    ]
    assert [(row["low"], row["high"], row["violations"], row["checked"]) for row in rows] == [
        (None, 40.0, 2, 5), (1.0, None, 0, 3), (None, 1.0, 2, 8), (None, 2.0, 0, 0), (9.0, None, 0, 0),
    ]  # fmt: skip
    assert [assertion_title(row, "generation") for row in rows] == [
        "process.rss_bytes, generations 1 to 5: up to 40 B",
        "process.rss_bytes, from generation 6 onward: from 1 B",
        "budget of train (rank 1 main)",
        "free it (a.py:3): Env alive",
        "free it (a.py:3): generations to complete",
    ]
    # The format that the analysis writes today.
    check = msgspec.convert(rows, list[AssertionCheck])[2]
    assert (check.leak, check.worst, check.worst_generation) == (9.0, 3.0, 7)


NAMED_BEFORE = {
    "findings": [{"fingerprint": "f", "status": "suspected", "kind": "native", "phase": None, "phase_share": None,
                  "suspects": [], "growth_bytes_per_generation": {"estimate": 1.0, "low": 0.0, "high": 2.0},
                  "started_at_generation": None, "confidence": 0.5, "unknown": "seldom"}],
    "assertions": [{"origin": "band", "outside": 2, "judged": 5,
                    "deviations": [{"generation": 4, "measured": 43.0, "off_by": 3.0}]}],
    "forecast_score": {"forecasts": 1, "past": [{"generation": 9, "came": 7.0}], "by_lead": [
        {"ahead_from": 1, "ahead_to": 3, "past": [{"generation": 9, "came": 7.0}]}]},
}  # fmt: skip


def test_stored_verdicts_and_findings_get_the_new_names(engine: Engine) -> None:
    downgrade(engine, MIGRATIONS, "0019_assertions_of_verdicts")
    (finding,) = NAMED_BEFORE["findings"]
    incident = {"run_id": "r1", "status": "suspected", "kind": "native", "summary": "s"}
    incident |= dict.fromkeys(("first_seen_at", "changed_at"), 1.0)
    with writing(engine) as connection:
        connection.exec_driver_sql(
            "INSERT INTO runs (id, project, name, unit, state, started_at, created_at, last_seen_at, presumed) "
            "VALUES ('r1', 'p', 'n', 'generation', 'killed', 1, 1, 1, true)"
        )
        connection.execute(runs_table.update().values(verdict=json.dumps(NAMED_BEFORE)))
        for each in ("f", "g"):
            text = json.dumps({**finding, "fingerprint": each})
            # Two rows of one run: each is read and written separately.
            row = {**incident, "id": each, "fingerprint": each, "finding": text}
            connection.execute(insert(incidents_table), row)
    upgrade(engine, MIGRATIONS)

    with engine.connect() as connection:
        assert connection.scalar(select(runs_table.c.end_inferred)) is True
        found = json.loads(connection.scalar(select(runs_table.c.verdict)) or "")
        findings = connection.scalars(select(incidents_table.c.finding)).all()
    assert [json.loads(each)["unknown"] for each in findings] == ["rarely_counted"] * 2
    for each in findings:
        msgspec.json.decode(each, type=Finding)
    assert found["findings"][0]["unknown"] == "rarely_counted"
    (check,) = found["assertions"]
    assert (check["violations"], check["checked"]) == (2, 5)
    assert check["deviations"][0]["difference"] == 3.0
    score = found["forecast_score"]
    assert (score["past"][0]["actual"], score["by_lead"][0]["past"][0]["actual"]) == (7.0, 7.0)
    assert (score["by_lead"][0]["lead_from"], score["by_lead"][0]["lead_to"]) == (1, 3)

    downgrade(engine, MIGRATIONS, "0019_assertions_of_verdicts")
    with engine.connect() as connection:
        assert json.loads(connection.scalar(select(runs_table.c.verdict)) or "") == NAMED_BEFORE
        before = connection.scalars(select(incidents_table.c.finding)).all()
    assert {json.loads(each)["unknown"] for each in before} == {"seldom"}


@pytest.mark.parametrize("schema", ["0020_plain_names"], indirect=True)
def test_runs_get_the_severity_of_their_verdicts(old_database_url: str, schema: str) -> None:
    """This includes a silent run, which will get no other verdict."""
    engine, found = open_engine(old_database_url), runs_table.c
    with writing(engine) as connection:
        stored = connection.execute(select(found.id, found.verdict)).all()
        assert any(row.verdict for row in stored) and len(stored) >= 3
        leaks = first_verdict("x", "generation")
        leaks["findings"] = [{"status": "confirmed", "priority": "critical"}]
        state = {"verdict": json.dumps(leaks), "state": "silent"}
        # More rows than are read at a time.
        for number in range(250):
            put_run(connection, f"silent-{number:03}", **state)
        put_run(connection, "odd", verdict='{"findings": 3}')
        put_run(connection, "new")
    upgrade(engine, MIGRATIONS)
    with engine.connect() as connection:
        rows = connection.execute(select(found.id, found.severity)).all()
    severities = {row.id: row.severity for row in rows}
    for row in stored:
        expected = sorted_by(json.loads(row.verdict))["severity"] if row.verdict else 0
        assert severities.pop(row.id) == expected, row.id
    assert (severities.pop("odd"), severities.pop("new")) == (0, 0)
    assert list(severities.values()) == [3] * 250
    engine.dispose()


def test_segments_no_longer_count_numbers_by_phase(engine: Engine) -> None:
    downgrade(engine, MIGRATIONS, BEFORE_NO_STRANDS)
    before = MetaData()
    before.reflect(engine)
    of_segments = before.tables["segments"]
    with writing(engine) as connection:
        put_run(connection, "r1")
        for level, first in ((0, 1), (1, 512), (2, 1024)):
            _row(connection, of_segments, first_sequence=first, level=level, bytes=1_000)
            for series, strands in ((1, b"12345"), (2, None), (3, b"123")):
                more = {"series_id": series, "strands": strands if level else None}
                _row(connection, before.tables["chunks"], first_sequence=first, **more)
        # This segment has nothing packed.
        _row(connection, of_segments, first_sequence=2048, level=2, bytes=70)
    upgrade(engine, MIGRATIONS)
    with engine.connect() as connection:
        s = segments.c
        found = connection.execute(select(s.level, s.bytes).order_by(s.first_sequence)).all()
    assert [tuple(row) for row in found] == [(0, 1_000), (1, 992), (1, 992), (1, 70)]


def _row(connection: Connection, table: Table, **given: Any) -> None:
    """Insert a row of run r1 with a value in every required column."""
    made: dict[str, Any] = {"run_id": "r1", "process_id": 1}
    for column in table.columns:
        has_none = column.name not in given | made and column.server_default is None
        if has_none and not column.nullable:
            kind = column.type.python_type
            made[column.name] = b"" if kind is bytes else "" if kind is str else kind(1)
    connection.execute(insert(table).values(**made | given))


def test_damaged_rules_do_not_stop_the_upgrade(sqlite_url: str) -> None:
    engine, file = open_engine(sqlite_url), sqlite_url.removeprefix("sqlite:///")
    downgrade(engine, MIGRATIONS, BEFORE_ASSERTIONS)
    plant_old_rows(engine)
    engine.dispose()
    with contextlib.closing(sqlite3.connect(file)) as database:
        for change in (
            "rules SET above = 'secret' WHERE id = 3", "rules SET name = CAST(X'FF' AS TEXT) WHERE id = 3",
            "rule_states SET rule_id = 99 WHERE id = 2", "rule_states SET run_id = X'FF' WHERE id = 1",
            "accepted_counts SET type = CAST('secret' AS BLOB) WHERE id = 2",
        ):  # fmt: skip
            database.execute(f"UPDATE {change}")
        # A value that is completely lost, in a column that does not allow NULL.
        database.execute("PRAGMA writable_schema = ON")
        nullable = "sql = replace(sql, 'type TEXT NOT NULL', 'type TEXT')"
        database.execute(f"UPDATE sqlite_master SET {nullable} WHERE name = 'accepted_counts'")
        database.commit()
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE accepted_counts SET type = NULL WHERE id = 1")
        database.commit()
    engine = open_engine(sqlite_url)
    upgrade(engine, MIGRATIONS)
    assert set_aside(engine) == 2
    assert [rule.id for rule in assertions.list_rules(engine)] == [7]
    assert assertions.accepted_in(engine, "p") == []
    engine.dispose()


@pytest.mark.parametrize(
    "damage",
    [
        "low = NULL", "high = 9e999", "low = 1.5", "high = -1e300", "run = NULL", "project = NULL", "metric = 'x'",
        "metric = 'type..count'",
    ],
)  # fmt: skip
def test_an_impossible_accepted_count_is_set_aside(sqlite_url: str, damage: str) -> None:
    engine = open_engine(sqlite_url)
    accepted = {"origin": "accepted", "metric": "type.app.Env.count", "low": 1.0, "high": 2.0}
    own = {"project": "p", "run": "r1", "source": "page", "created_at": 30.5}
    with writing(engine) as connection:
        connection.execute(insert(assertions_table).values(**accepted, **own))
    assert len(assertions.accepted_in(engine, "p")) == 1
    with writing(engine) as connection:
        connection.exec_driver_sql(f"UPDATE assertions SET {damage}")
    assert (set_aside(engine), assertions.accepted_in(engine, "p")) == (1, [])
    engine.dispose()


DATA = Path(__file__).resolve().parents[1] / "data"
# Schema -> the commit whose server wrote it.
RECORDED = {
    "0004_ends_of_processes": "37b4b85", "0009_deleted_runs": "22fae87", "0010_strands": "44f7bc0",
    "0012_access": "5638250", "0013_accepted_counts": "15f396f", "0014_clocks_not_known": "77caa32",
    "0015_damaged": "f684e09", "0016_formats_by_apprise": "f646741", "0017_assertions": "801a53f",
    "0019_assertions_of_verdicts": "79af625", "0020_plain_names": "bb073dd", "0021_severity_of_runs": "e5f002a",
}  # fmt: skip
# Released together with the next schema: no server wrote it.
NEVER_THE_LAST = {"0011_intake", "0018_no_strands"}
# Schemas made by a downgrade: from 0004 below, and from today's schema above.
GONE_BACK_TO = {
    "0001_runs_and_samples", "0002_incidents_and_alerts", "0003_acknowledgements_and_rules",
    "0005_keys_begin_with_the_run", "0006_several_servers", "0007_removals_and_sizes",
    "0008_segments_to_compact",
}  # fmt: skip


def unpacked(schema: str, kind: str) -> bytes:
    return lzma.decompress((DATA / f"schema_{schema[:4]}.{kind}.xz").read_bytes())


@pytest.fixture(params=RECORDED, ids=lambda schema: schema[:4])
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def answers(schema: str) -> dict[str, Any]:
    return dict(json.loads(unpacked(schema, "json"))["answers"])


@pytest.fixture(scope="module")
def sent() -> list[tuple[str, Any]]:
    return list(json.loads(unpacked("0004", "json"))["sent"])


@pytest.fixture
def old_database_url(schema: str, empty_database_url: str, tmp_path: Path) -> str:
    file = tmp_path / "of_before.db"
    file.write_bytes(unpacked(schema, "db"))
    if empty_database_url.startswith("sqlite"):
        return f"sqlite:///{file}"
    copy_rows(f"sqlite:///{file}", empty_database_url, schema)
    return empty_database_url


def copy_rows(source_url: str, target_url: str, schema: str) -> None:
    source, target = open_engine(source_url), open_engine(target_url)
    upgrade(target, MIGRATIONS, schema)
    tables = MetaData()
    tables.reflect(target)
    with source.connect() as reading, writing(target) as connection:
        for table in tables.sorted_tables:
            rows = [dict(row._mapping) for row in reading.execute(select(table))]
            if rows and table.name != "alembic_version":
                connection.execute(insert(table), rows)
            if inspect(connection).get_columns(table.name)[0]["autoincrement"]:
                # A server that wrote the rows would have advanced the sequence of their ids.
                drawn = f"pg_get_serial_sequence('{table.name}', 'id')"
                connection.exec_driver_sql(f"SELECT setval({drawn}, max(id)) FROM {table.name}")
    source.dispose()
    target.dispose()


# Fields of the recorded answers -> their names since 0020.
RENAMED = {
    "presumed": "end_inferred", "said": "acknowledgements", "back": "reopened", "tries": "attempts",
    "next_try_at": "next_attempt_at", "outside": "violations", "judged": "checked", "off_by": "difference",
    "came": "actual", "ahead_from": "lead_from", "ahead_to": "lead_to",
}  # fmt: skip


def renamed(answer: Any) -> Any:
    """Return a recorded answer with today's names of fields and words for acknowledgements."""
    if isinstance(answer, str):
        answer = re.sub("[Nn]othing to say yet", "No verdict yet", answer)
        return answer.replace("acknowledged: “", "muted: “")
    if isinstance(answer, dict):
        return {RENAMED.get(name, name): renamed(value) for name, value in answer.items()}
    return [renamed(each) for each in answer] if isinstance(answer, list) else answer


def asked(api: TestClient, path: str) -> Any:
    """Return the answer, with all pages of a list joined."""
    answer = api.get(path).json()
    if "/snapshots?" not in path:
        return answer
    rows = answer["items"]
    while answer["next"]:
        answer = api.get(f"{path}&cursor={answer['next']}").json()
        rows += answer["items"]
    return {"items": rows}


def comparable(path: str, answer: Any) -> Any:
    """Sort objects of equal size or count, which have no fixed order, and join the lists that are one list now."""
    if "fixes" in answer:
        checked = [row for name in ("bands", "budgets", "fixes") for row in answer.pop(name, ())]
        answer["assertions"] = [{"sentence": row["sentence"]} for row in checked]
    if path.endswith(("/large-objects", "/holders")):
        answer["items"].sort(key=lambda row: json.dumps(row, sort_keys=True))
    return answer


def missing(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield what was answered before and is missing now; new fields are ignored."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, value in before.items():
            if name not in now:
                yield f"{where}.{name} is gone"
            else:
                yield from missing(value, now[name], f"{where}.{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, value in enumerate(before):
            yield from missing(value, now[number], f"{where}[{number}]")
    elif where.endswith(".clock_skew_seconds") and (before or 0) > MAX_SKEW_SECONDS:
        # The age of the upload, which older servers took for a clock that is behind.
        if now is not None:
            yield f"{where}: {before} is {now}, and not unknown"
    elif folded(before) != folded(now):
        yield f"{where}: {str(before)[:80]} is {str(now)[:80]}"


def folded(value: Any) -> Any:
    """Ignore case, because sentences begin with a capital letter now."""
    return value.casefold() if isinstance(value, str) else value


def assert_reads_as_before(api: TestClient, answers: dict[str, Any]) -> None:
    """Compare all answers; ``api`` was not entered, so no worker changes anything meanwhile."""
    for path, before in answers.items():
        now = comparable(path, asked(api, path))
        assert list(missing(comparable(path, renamed(before)), now)) == [], path


def test_an_old_database_reads_as_before_and_accepts_more(
    old_database_url: str, schema: str, answers: dict[str, Any], sent: list[tuple[str, Any]], make_run: Any
) -> None:  # fmt: skip
    engine = open_engine(old_database_url)
    assert current(engine) == schema
    engine.dispose()
    assert len(answers) >= 40
    api = serving(old_database_url)
    assert_reads_as_before(api, answers)
    with api:
        for path, batch in sent:
            answer = api.post(path, json=batch)
            assert (answer.status_code, answer.json()["accepted"]) == (200, 0), answer.text
        for instance, first in (("p1", 600), ("p4", 0)):
            later = make_run(id="grows", instance=instance, extra={"gauge.new": lambda s: s})
            assert later.send(api, first, 30) == 30
        rows = asked(api, "/api/v1/runs/grows/snapshots?limit=200&name=gauge.new&name=custom.huge")
        newest = {row["process"]: row["samples"] for row in reversed(rows["items"])}
        assert newest["p1"] == {"gauge.new": 629}
        assert newest["p4"] == {"gauge.new": 29}
        before = answers["/api/v1/runs/grows/snapshots?limit=200&name=*"]["items"]
        assert len(rows["items"]) == len(before) + 60


# The first schema goes through all migrations; `test_the_upgrade_sets_damaged_values_aside` covers those between.
@pytest.mark.parametrize("schema", [min(RECORDED), max(RECORDED)], indirect=True)
@pytest.mark.parametrize("empty_database_url", ["sqlite"], indirect=True)
def test_damage_in_an_old_database_does_not_affect_other_runs(
    old_database_url: str, answers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    damage_all_of("fresh", Path(old_database_url.removeprefix("sqlite:///")))
    api = serving(old_database_url)
    of_others = {path: a for path, a in answers.items() if "/runs/g" in path}
    assert len(of_others) >= 25
    assert_reads_as_before(api, of_others)
    said = {run["id"]: run["summary"] for run in api.get("/api/v1/runs").json()["items"]}
    assert said["fresh"].startswith("Some of the data stored for this run is damaged (")
    assert "sk-secret" not in caplog.text and "Traceback" not in caplog.text


OF_RUNS = ("/series?", "/snapshots?", "/census", "/holders", "/large-objects")


@pytest.mark.parametrize("first", sorted(GONE_BACK_TO)[:3])
@pytest.mark.parametrize("schema", ["0004_ends_of_processes"], indirect=True)
def test_the_first_schemas_keep_the_data_of_runs(
    first: str, old_database_url: str, answers: dict[str, Any]
) -> None:
    """These schemas had no rules, no findings and no ends yet."""
    engine = open_engine(old_database_url)
    if old_database_url.startswith("sqlite"):
        # A downgrade recreates tables, and dropping an old one would delete the rows that refer to it.
        event.listen(engine, "connect", lambda made, _: made.execute("PRAGMA foreign_keys=OFF"))
    downgrade(engine, MIGRATIONS, first)
    assert current(engine) == first
    engine.dispose()
    of_runs = {path: a for path, a in answers.items() if any(word in path for word in OF_RUNS)}
    assert len(of_runs) >= 20
    assert_reads_as_before(serving(old_database_url), of_runs)


def test_every_schema_that_a_server_wrote_is_recorded() -> None:
    """A new migration needs a recorded database of the schema before it."""
    of_before = revisions(MIGRATIONS)[:-1]
    assert set(of_before) - GONE_BACK_TO - NEVER_THE_LAST <= set(RECORDED)
