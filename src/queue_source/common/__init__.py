"""Helpers that several packages need and none of them owns: sessions of AWS, globs, paths of this machine."""
