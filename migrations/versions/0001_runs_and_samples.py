"""Create the first schema: runs, their processes, batches, sealed chunks and details."""

import sqlalchemy as sa
from alembic import op

revision = "0001_runs_and_samples"
down_revision = None
branch_labels = None
depends_on = None

# SQLite assigns row ids automatically only if the column type is exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("tags", sa.Text(), server_default="[]", nullable=False),
        sa.Column("phases", sa.Text(), server_default="[]", nullable=False),
        sa.Column("phases_seen", sa.Text(), server_default="[]", nullable=False),
        sa.Column("config", sa.Text(), server_default="{}", nullable=False),
        sa.Column("environment", sa.Text(), server_default="{}", nullable=False),
        sa.Column("notes", sa.Text(), server_default="[]", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("first_generation", sa.BigInteger(), nullable=True),
        sa.Column("last_generation", sa.BigInteger(), nullable=True),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("sparkline", sa.Text(), server_default="{}", nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("verdict_revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("status", sa.Text(), server_default="learning", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index("ix_runs_project", "runs", ["project", "started_at", "id"])
    op.create_index("ix_runs_started_at", "runs", ["started_at", "id"])
    op.create_index("ix_runs_state", "runs", ["state", "last_seen_at"])
    op.create_table(
        "attempts",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("environment", sa.Text(), server_default="{}", nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("run_id", "number", name=op.f("uq_attempts_run_id_number")),
    )
    op.create_table(
        "processes",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("end_state", sa.Text(), nullable=True),
        sa.Column("clock_skew_seconds", sa.Double(), nullable=True),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("lost", sa.Text(), server_default="{}", nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_processes_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_processes")),
        sa.UniqueConstraint("run_id", "instance", name=op.f("uq_processes_run_id_instance")),
    )
    op.create_table(
        "series",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_series_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_series")),
        sa.UniqueConstraint("run_id", "name", name=op.f("uq_series_run_id_name")),
    )
    op.create_table(
        "batches",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("process_id", _ID, nullable=False),
        sa.Column("first_sequence", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["process_id"], ["processes.id"], name=op.f("fk_batches_process_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_batches_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.UniqueConstraint(
            "process_id", "first_sequence", name=op.f("uq_batches_process_id_first_sequence")
        ),
    )
    op.create_index("ix_batches_run_id", "batches", ["run_id", "revision"])
    op.create_table(
        "segments",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("process_id", _ID, nullable=False),
        sa.Column("first_sequence", sa.BigInteger(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["process_id"],
            ["processes.id"],
            name=op.f("fk_segments_process_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_segments_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sa.UniqueConstraint(
            "process_id", "first_sequence", name=op.f("uq_segments_process_id_first_sequence")
        ),
    )
    op.create_index("ix_segments_run_id", "segments", ["run_id", "revision"])
    op.create_table(
        "chunks",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("process_id", _ID, nullable=False),
        sa.Column("series_id", sa.BigInteger(), nullable=False),
        sa.Column("first_sequence", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("first", sa.Double(), nullable=True),
        sa.Column("last", sa.Double(), nullable=True),
        sa.Column("min", sa.Double(), nullable=True),
        sa.Column("max", sa.Double(), nullable=True),
        sa.Column("width", sa.SmallInteger(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["process_id"], ["processes.id"], name=op.f("fk_chunks_process_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
        sa.UniqueConstraint(
            "process_id",
            "series_id",
            "first_sequence",
            name=op.f("uq_chunks_process_id_series_id_first_sequence"),
        ),
    )
    op.create_table(
        "details",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("process_id", _ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["process_id"], ["processes.id"], name=op.f("fk_details_process_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_details_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_details")),
    )
    op.create_index("ix_details_run_id", "details", ["run_id", "kind", "generation"])


def downgrade() -> None:
    op.drop_table("details")
    op.drop_table("chunks")
    op.drop_table("segments")
    op.drop_table("batches")
    op.drop_table("series")
    op.drop_table("processes")
    op.drop_table("attempts")
    op.drop_table("runs")
