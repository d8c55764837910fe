"""Endpoints for other programs: metrics for Prometheus, and the external scaler of KEDA."""
