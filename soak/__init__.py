"""The soak: real processes under random faults, and an independent ledger that checks the invariants."""
