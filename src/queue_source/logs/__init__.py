"""Log lines of Spark's Python processes: which pipeline and batch they are of, their form, and their bounds."""
