"""Queues behind one small protocol (`base.py`), one file an adapter."""
