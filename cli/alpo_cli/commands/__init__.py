"""Command lines of `alpo`: a module for each command or group, imported when it is called."""
