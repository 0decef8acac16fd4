"""Simulator of whole clusters in one process on virtual time: the core that `alpod` runs, on networks and disks worse
than any real one. All that is random comes from one seed; nothing here imports the node.

From the bottom up: `stage` carries out actions on real cores, and can record them; `checks` watch; `cluster` gives
servers, disks and links their delays; `world` adds `clients` and `faults`, drawn from a seed, and demands progress;
`scenario` is a schedule as text, and `replay` carries it out again."""
