"""Pipelines that are killed, paused and cut off from their database at random, and what must hold afterwards."""
