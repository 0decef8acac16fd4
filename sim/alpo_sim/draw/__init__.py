"""Space-time diagrams: `story` listens, `layout` runs and places, `svg` draws."""
