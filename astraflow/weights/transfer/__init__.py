"""Transfer to readers: fetched, assembled, applied and verified versions."""
