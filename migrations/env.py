"""Alembic's environment script. leakline_server.store.migrate provides the connection; there is no alembic.ini."""

from alembic import context

from leakline_server.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter most things in place, so tables are recreated
    transaction_per_migration=False,
)
# The caller's transaction covers all steps, so a failed step leaves nothing behind.
context.run_migrations()
