"""Formats that bring their own types: Parquet, ORC and Avro."""
