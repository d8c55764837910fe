"""Fleet service, the only service that starts and stops instances: ledger, guard, reconciler, and providers."""
