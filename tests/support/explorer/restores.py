"""One or two of store, checkpoints, tables and queues are put back: each in the spellings that its clients have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from support.explorer.casts import TABLES, Kind

if TYPE_CHECKING:
    from support.explorer.explorer import Explorer
    from support.explorer.usual import Steps
    from support.explorer.world import Moment

PUT_BACK: Counter[str] = Counter()
"""How often each was put back in this process, and in which spelling, and what followed."""

_OTHERS = (0, 0, 1, 25)
"""Commits of other programs afterwards; with 25 what was put back is far behind in the log."""


class Restores:
    """This step of an exploration. Once in it: what may be lost is known for one moment alone."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.world, self.lives = explorer, explorer.world, explorer.lives
        self.choose, self.disasters = explorer.choose, explorer.disasters

    def put_back(self) -> None:
        """While all is stopped. More is announced by then; and a second pair of queries may be begun before it is."""
        world, lives, choose = self.world, self.lives, self.choose
        if self.disasters.went_back or len(world.states) < 2:
            return
        parts = ["store", "checkpoints", "queues", *["tables"] * 6 * bool(world.tables)]
        chosen = {choose.choice(parts), *([choose.choice(parts)] if choose.random() < 0.4 else [])}
        lives.end_all()
        moment, name = self._moment("tables" in chosen)
        if moment is None:
            return
        spellings = {kind: choose.choice(table.spellings) for kind, table in world.tables.items()}
        before = set(world.published())
        world.log(f"  {name}: {', '.join(sorted(chosen))}")
        if "store" in chosen:
            world.go_back(moment)
        if "queues" in chosen:
            world.put_queues_back(moment)
        if "checkpoints" in chosen:
            self.disasters.put_checkpoints_back(moment, lost="store" in chosen)
        is_table = [self._put_table_back(kind, moment, how) for kind, how in spellings.items() if "tables" in chosen]
        if chosen == {"tables"} and not any(is_table):
            return
        if "store" not in chosen:
            self.disasters.excuse_finished(before - set(world.published()))
        for part in chosen:
            PUT_BACK[f"{part}, {name}"] += 1
        self.disasters.went_back = lives.may_notice = True
        for _ in range(choose.randint(0, 3)):
            self.explorer.usual.announce()
            self.explorer.usual.trigger()

    def _moment(self, of_tables: bool) -> tuple[Moment | None, str]:
        world, choose = self.world, self.choose
        if first := self.disasters.beginning():
            return first, "to the beginning"
        if of_tables:
            now = {kind: table.state() for kind, table in world.tables.items()}
            earlier = [moment for moment in (*world.before_tables, *world.states) if moment.tables != now]
            return (choose.choice(earlier) if earlier else None), "to before a table's batch"
        return world.moment(choose.randint(1, 5)), "by some steps"

    def _put_table_back(self, kind: Kind, moment: Moment, spelling: str) -> bool:
        world, choose = self.world, self.choose
        table = world.tables[kind]
        state = moment.tables.get(kind)
        if (kind.sink == "iceberg-inside" and state is None) or not table.put_back(state, spelling, choose):
            return False
        others = choose.choice(_OTHERS if kind.sink == "delta" else (0, 0, 1, 3))
        table.others(others)
        cleans = choose.random() < 0.5
        if cleans:
            table.clean_up()
        PUT_BACK[f"{kind.sink}: {spelling}"] += 1
        PUT_BACK[f"{kind.sink}: {others} commits of others, {'cleaned up' if cleans else 'not cleaned up'}"] += 1
        world.log(f"  {kind.sink} of {kind.names}: {spelling}, {others} others, {'cleaned up' if cleans else ''}")
        world.spelled[kind] = spelling
        if spelling == "metadata":  # an older copy of the table, marks and all: the pages say that it is not noticed
            world.in_tables[kind] = set(moment.in_tables.get(kind, ()))
        return True


def steps_of(explorer: Explorer) -> Steps:
    """The step, where the world remembers what it was."""
    if "spellings" not in explorer.takes and "beginnings" not in explorer.takes:
        return {}
    restores = Restores(explorer)
    often = 16 if any(kind.sink in TABLES for kind in explorer.world.cast.kinds) else 2
    return {"put_back": (often if explorer.world.remembers else 0, restores.put_back)}
