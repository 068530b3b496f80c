"""`yeto-checkpoint`: looks into the files of a run, judges, compares, exports and migrates them.

Everything here reads front to back in pieces, so that a checkpoint may be far larger than memory.
"""
