"""State of the followed run and its fleet, as last reported."""
