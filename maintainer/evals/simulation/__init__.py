"""Simulated world of a case: provider, dataflow and a complete fleet service in virtual time, watched by an auditor."""
