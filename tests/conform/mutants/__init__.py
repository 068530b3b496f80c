"""Our own codec, syncer and learner, each with one rule broken: what `yeto-conform mutants` must find."""
