"""The schema goes up and down on both databases, is the one the code speaks, and newer ones are left alone."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.migrate import NewerDatabase, current, downgrade, revisions, upgrade
from leakline_server.store.tables import metadata


def steps() -> list[str]:
    """As Alembic follows them."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def test_the_migrations_make_exactly_the_tables_of_the_code(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


# Beyond it there is no way back.
KEYS = "0005_keys_begin_with_the_run"


def test_every_step_goes_up_and_where_it_can_down_again(empty_database_url: str) -> None:
    engine, known = open_engine(empty_database_url), steps()
    upgrade(engine, MIGRATIONS, known[known.index(KEYS) - 1])
    downgrade(engine, MIGRATIONS, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]
    for step in known:
        upgrade(engine, MIGRATIONS, step)
        assert current(engine) == step
    downgrade(engine, MIGRATIONS, KEYS)
    with pytest.raises(RuntimeError, match="restore the backup"):
        downgrade(engine, MIGRATIONS, "base")
    assert current(engine) == KEYS
    upgrade(engine, MIGRATIONS)
    assert current(engine) == known[-1]
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_database_at_this_version_is_left_as_it_is(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def migrate(*_: object) -> None:
        raise AssertionError("there is nothing to do")

    monkeypatch.setattr(command, "upgrade", migrate)
    upgrade(engine, MIGRATIONS)
    assert current(engine) == steps()[-1]


def test_the_files_of_the_steps_are_named_and_ordered_as_the_steps() -> None:
    assert revisions(MIGRATIONS) == steps()


def test_a_database_of_a_newer_version_is_refused_with_a_sentence(engine: Engine) -> None:
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_future'")
    with pytest.raises(NewerDatabase, match=r"9999_future.*newer leakline"):
        upgrade(engine, MIGRATIONS)
    assert current(engine) == "9999_future"


def test_a_step_that_fails_leaves_nothing_behind(empty_database_url: str) -> None:
    engine = open_engine(empty_database_url)
    with writing(engine) as connection:
        # In the way of the second migration.
        connection.exec_driver_sql("CREATE TABLE webhooks (id INTEGER)")
    with pytest.raises(Exception, match="webhooks"):
        upgrade(engine, MIGRATIONS)
    assert inspect(engine).get_table_names() == ["webhooks"]
    engine.dispose()


def test_every_constraint_has_a_name(engine: Engine) -> None:
    for table in metadata.tables.values():
        for constraint in table.constraints:
            assert constraint.name, (table.name, constraint)
