"""What all commands share: streams and signals, the parser, what is printed, and how a command ends.

Standard library only, so that `--help` and an early Ctrl-C wait for nothing.
"""
