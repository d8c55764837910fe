"""What is followed while a run goes on: its report, its fleet, its maintainer; and what of it goes to every browser."""
