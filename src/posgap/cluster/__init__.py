"""Work that posgap hands to a Kubernetes cluster."""
