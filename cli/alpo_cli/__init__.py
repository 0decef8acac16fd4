"""The `alpo` command: a thin, scriptable interface to the client library."""
