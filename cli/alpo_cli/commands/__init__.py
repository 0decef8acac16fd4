"""The command lines of `alpo`: a module a command or group, imported when it is called."""
