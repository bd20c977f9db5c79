"""The schema goes up and down on both databases, is the one the code speaks, and newer ones are left alone."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from leakline_server.paths import MIGRATIONS
from leakline_server.store.engine import Engine, open_engine, writing
from leakline_server.store.migrate import NewerDatabase, current, downgrade, upgrade
from leakline_server.store.tables import metadata


def revisions() -> list[str]:
    scripts = ScriptDirectory(str(MIGRATIONS))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def test_the_migrations_make_exactly_the_tables_of_the_code(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_every_step_goes_down_and_up_again(engine: Engine) -> None:
    steps = revisions()
    assert current(engine) == steps[-1]
    for step in [*steps[-2::-1], "base"]:
        downgrade(engine, MIGRATIONS, step)
        assert current(engine) == (None if step == "base" else step)
    assert inspect(engine).get_table_names() == ["alembic_version"]
    for step in steps:
        upgrade(engine, MIGRATIONS, step)
    assert current(engine) == steps[-1]
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_database_at_this_version_is_left_as_it_is(engine: Engine) -> None:
    upgrade(engine, MIGRATIONS)
    assert current(engine) == revisions()[-1]


def test_a_database_of_a_newer_version_is_refused_with_a_sentence(engine: Engine) -> None:
    with writing(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_future'")
    with pytest.raises(NewerDatabase, match=r"9999_future.*newer leakline"):
        upgrade(engine, MIGRATIONS)
    assert current(engine) == "9999_future"


def test_a_step_that_fails_leaves_nothing_behind(database_url: str) -> None:
    engine = open_engine(database_url)
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
