"""Measurements of elections: ALPO's real core beside models of Raft and of ALPO's 2012 draft, in a simulated world."""
