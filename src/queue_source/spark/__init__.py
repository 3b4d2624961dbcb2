"""The only package that imports pyspark. No logic: each method is a call or two."""
