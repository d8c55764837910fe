"""Live state of followed runs (report, fleet, maintainer), and the updates that browsers receive."""
