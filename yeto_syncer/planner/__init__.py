"""`yeto-syncer plan`: what a run needs in memory, disk, bytes and seconds, and what binds it.

`model` holds the formulas and is pure, `rates` measures this machine, `units` reads numbers with units, and
`command` is the command line.
"""
