"""Alerts: rules on recorded series and records, their evaluation on each report, and notices by webhook and mail."""
