"""How good the maintainer is: by the evaluations of its model, and by what this run has recorded."""
