"""Space-time diagrams: `telling` runs, `story` listens, `layout` places, `svg` draws, `html` makes a page of it all."""
