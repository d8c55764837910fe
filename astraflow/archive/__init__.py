"""What a run keeps to be looked at, as it lies in the run's folder: asked by dataflow and by who reopens it."""
