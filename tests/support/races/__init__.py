"""Races between transactions on a server: two verbs of the store, the second one whole between two steps of the first.

On SQLite writers wait for each other. On PostgreSQL and MariaDB (READ COMMITTED) two transactions interleave statement
by statement. `verbs` is what drivers, readers, timers and operators call; `prepared` the store over which they are
called, `reader` a small model of a reader and its queue, `race` runs a pair, and `outcomes` judges what came of it.
"""
