"""The conformance corpus: from the cases of `spec/cases/` to JSON lines that any implementation is graded by.

The encoder here knows only the specification, not `yeto_proto`, so that a corpus and a codec that disagree
show it.
"""
