"""Snapshots go once their plan is confirmed: what is asked of old ones stands elsewhere.

An attempt keeps when its last snapshot was written (`processed_time` of the view `files_state`), a pipeline for how
long a start asks for what was delivered. The snapshots themselves are removed by the next pruning.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cuesqueue_attempts", sa.Column("snapshot_at", sa.BigInteger))
    op.add_column("cuesqueue_pipelines", sa.Column("remembered", sa.BigInteger))
    op.execute(
        "UPDATE cuesqueue_attempts SET snapshot_at = (SELECT s.created_at FROM cuesqueue_snapshots s WHERE "
        "s.pipeline = cuesqueue_attempts.pipeline AND s.seq = cuesqueue_attempts.end_seq AND s.chunk = 0)"
    )
