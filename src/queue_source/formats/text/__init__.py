"""Formats of text: CSV, JSON and plain lines."""
