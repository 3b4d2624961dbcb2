"""The oracle of reading: relations that hold for whatever is read, tried on values from the edges.

`python -m support.oracle --minutes 5 --seed 1` (with `tests` on the path) searches. `cases.py` makes the cases,
`values.py` their values, `rows.py` reads them by our reader, and each relation is a module with a function that raises
`Broken` with its case. `run.py` draws, shrinks, and prints what to paste into a test.
"""
