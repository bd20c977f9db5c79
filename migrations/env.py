"""Alembic's entry. The connection comes from leakline_server.store.migrate; there is no alembic.ini."""

from alembic import context

from leakline_server.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter most things in place
    transaction_per_migration=False,
)
# The caller holds the transaction, so a failed step leaves nothing behind.
context.run_migrations()
