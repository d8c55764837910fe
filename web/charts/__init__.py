"""Charts of several pages: specifications, scales, drawings, data for the scripts, and tables of their values."""
