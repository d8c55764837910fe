"""What is measured: counts become reports, reports become history."""
