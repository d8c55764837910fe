"""Instances: carries out intents, corrects differences between ledger and providers, and injects faults."""
