"""Build-time generator: reads `spec/` and writes the Python that follows from it.

Nothing at run time imports this package, and it imports no yeto package. `python -m codegen --help` lists the
modes.
"""
