"""What operators, and readers that are not in a hurry, ask a cluster."""
