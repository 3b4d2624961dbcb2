"""Micro-batches: from the snapshot through the plan and its readings to what is published and confirmed."""
