"""Space-time diagrams: `telling` runs, `story` listens, `layout` places, `svg` draws."""
