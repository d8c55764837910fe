"""The store: versions of all policies, their files, planning of transfers, and the RPCs of the weight plane."""
