"""`yeto-learner demo`: a whole run on one machine, and the checks of what it promises."""
