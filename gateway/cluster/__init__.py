"""What makes one daemon a node of a cluster: several daemons over one store. Nothing of it is imported without `[node]`."""
