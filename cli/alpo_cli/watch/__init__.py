"""Live view of a cluster: `alpo watch`."""
