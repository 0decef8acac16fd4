"""Commands of `alpo`: a module for each command or group, imported when it is called. Its help imports nothing of what
the work needs: functions import that."""
