"""By the clock: heartbeats, maintenance, the lock of the driver's folder, and what the reader reports of itself."""
