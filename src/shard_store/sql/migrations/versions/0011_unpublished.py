"""Certificates count what was skipped and what was given up apart; objects that were skipped before are marked.

Only additions that older code does not need: the marks are values of `pending`, which it does not look at where a
shard is done.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _mark_skipped()  # first: it may take a while, and locks no table
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    existing = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("cuesqueue_certificates")}
    for name in ("skipped", "given_up"):
        if name not in existing:
            op.add_column("cuesqueue_certificates", sa.Column(name, sa.BigInteger))


def _mark_skipped() -> None:
    """By errors of the attempts that ended these shards, as far as both are not pruned. Reads the errors once."""
    shards = sa.table("cuesqueue_shards", *map(sa.column, ("shard_key", "owner", "end_seq", "state", "pending")))
    errors = sa.table("cuesqueue_errors", *map(sa.column, ("shard_key", "scope", "delivery_hash")))
    attempts = sa.table("cuesqueue_attempts", *map(sa.column, ("delivery_hash", "pipeline", "end_seq")))
    skipped = (
        sa.select(shards.c.shard_key)
        .join_from(errors, attempts, attempts.c.delivery_hash == errors.c.delivery_hash)
        .join(shards, shards.c.shard_key == errors.c.shard_key)
        .where(
            errors.c.scope == "skipped",
            shards.c.state == "done",
            shards.c.owner == attempts.c.pipeline,
            shards.c.end_seq == attempts.c.end_seq,
        )
    )
    mark = shards.update().where(shards.c.state == "done").values(pending="skipped")
    keys = sorted({bytes(key) for key in op.get_bind().execute(skipped).scalars()})
    for first in range(0, len(keys), 1000):  # one statement for many: older readers wait for what is locked
        op.get_bind().execute(mark.where(shards.c.shard_key.in_(keys[first : first + 1000])))
