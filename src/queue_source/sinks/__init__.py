"""Where published rows go."""
