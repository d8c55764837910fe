"""Load test of one dataflow process with thousands of simulated nodes."""
