"""Requests of operators, and of readers that are not in a hurry."""
