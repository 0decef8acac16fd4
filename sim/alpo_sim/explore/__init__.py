"""Bounded exhaustive search of the real core: every interleaving within bounds, breadth first."""
