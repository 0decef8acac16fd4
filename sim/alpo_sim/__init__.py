"""A whole cluster in one process on virtual time: the core that `alpod` runs, byte for byte, against networks and
disks worse than any real one. Everything comes from one seed; nothing here imports the node.

From the bottom up: `stage` acts what it is told on real cores and remembers it; `checks` watch; `world` decides what
happens, at random from a seed (`network`, `faults`, `clients` are its parts); `scenario` is the same as text.
"""
