"""Starts and stops machines, and nobody else does: a ledger, a guard, a reconciler, and providers behind one port."""
