"""Provider `kubernetes`: one pod of a Kubernetes cluster per node."""
