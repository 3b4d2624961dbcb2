"""Tests that go over all cases of a kind: each named point, each disturbance, each hostile object, random orders."""
