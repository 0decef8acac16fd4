"""The `alpo` command: a thin, scriptable face over the client library."""
