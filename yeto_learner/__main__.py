"""`python -m yeto_learner`: the same as the `yeto-learner` command."""

import sys

from yeto_learner.cli import main

if __name__ == "__main__":
    sys.exit(main())
