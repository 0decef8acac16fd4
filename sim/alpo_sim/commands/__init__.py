"""The `alpo-sim` commands, one module each."""
