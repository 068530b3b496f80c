"""Grades any implementation of the protocol, in any language, by what it sends and how it answers.

`corpus/` holds the cases, generated from `spec/cases/`. A case is a trace: lines of JSON that say what the
runner sends and what the side under test must do. Three roles are graded: a syncer (the runner plays the
learners), a learner (the runner plays the syncer), and a codec (a process that answers one line of JSON per
line).
"""
