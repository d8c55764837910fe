"""Shared state of the fleet service: ledger and providers, dataflow's latest report, and stored replies."""
