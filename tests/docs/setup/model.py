"""A syncer for the learner of the page, which takes its address and id from the command line."""

import subprocess
import sys

address = "127.0.0.1:29400"
syncer = subprocess.Popen(
    ["yeto-syncer", "--learners", "1", "--total-steps", "40", "--port", address.partition(":")[2]],
)
sys.argv[1:] = [address, "0"]
