"""`cuesqueue demo`: the tour of the README."""
