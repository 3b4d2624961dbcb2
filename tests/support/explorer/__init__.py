"""A random explorer of everything between a queue and a target: real readers, tasks, stores and sinks, no threads.

`promises.py` has what must hold, whatever happens in whatever order. `casts.py` names the queries, and the kinds of
steps that can be left out. `objects.py` has the objects with their versions and notifications, `tables.py` targets with
a commit of their own, `world.py` all that outlives every process. `reader.py` is one reader process, or a receiver, a
step at a time, `query.py` Spark's part and the sinks, `lives.py` how queries start, fail and end, `disasters.py` what
people lose and put back, `restores.py` the spellings of that, `operators.py` every command. `usual.py` has the other
steps, `points.py` where processes die, `limits.py` what is made small. `explorer.py` chooses what happens next, by a
seed (append to its `MODULES` what brings more steps), `shrinking.py` drops steps, `counting.py` counts, and
`python -m support.explorer` runs it.
`meetings.py` lets other steps come in between any two transactions of a step.
"""
