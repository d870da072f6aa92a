"""Oracles, cases and stand-ins that several test files use; no tests."""
