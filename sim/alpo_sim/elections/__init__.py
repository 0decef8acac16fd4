"""Elections measured: ALPO as built, the literal draft of 2012 and Raft, in one world (`arena`)."""
