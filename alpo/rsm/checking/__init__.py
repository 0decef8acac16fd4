"""`check`: folds a user's machine in many ways and processes, and says where two differ. For users' own tests."""
