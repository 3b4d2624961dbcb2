"""Helpers that several packages need and none of them owns: access to clouds, globs, columns, times, local paths."""
