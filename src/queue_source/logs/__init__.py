"""Log lines of Spark's Python processes: their pipeline and batch, their form, and their bounds."""
