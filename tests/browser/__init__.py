"""The page of `cuesqueue serve` in a real Chromium."""
