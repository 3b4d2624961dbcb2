"""The tables of version 0.3, the oldest whose stores are migrated. Nothing makes them: a new store is of the newest."""

from __future__ import annotations

revision = "0013"
down_revision = None
branch_labels = None
depends_on = None
