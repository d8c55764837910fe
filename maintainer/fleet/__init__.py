"""The fleet service, which alone starts and stops instances: ledger, guard, reconciler, and providers."""
