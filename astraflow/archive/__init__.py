"""Archive of a run: recorded reports, samples and events in its folder, read by dataflow and by offline tools."""
