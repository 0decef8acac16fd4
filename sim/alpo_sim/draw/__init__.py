"""Space-time diagrams of runs: `story` hears what happens, `lanes` and `layout` say where it goes, `svg` and `html`
draw it.
"""
