"""A random explorer of everything between a queue and a sink: real readers, tasks, stores and deliveries, no threads.

`world.py` has what outlives every process, `reader.py` one reader process a step at a time, `query.py` Spark's part and
the sinks, `explorer.py` chooses what happens next, by a seed.
"""
