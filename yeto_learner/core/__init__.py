"""What a learner decides, as pure functions and state: no socket, clock, file or thread."""
