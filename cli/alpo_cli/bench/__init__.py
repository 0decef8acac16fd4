"""Load and measurements: `alpo bench append`, `read`, `failover`."""
