"""What tests share: oracles, cases, stand-ins. No tests."""
