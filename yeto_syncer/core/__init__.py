"""The syncer's coordinator: a pure `step(now, event) -> effects` over rounds, members and state.

Nothing in this package touches a socket, a clock, a file or a thread. The shell feeds `events` and performs
`effects`, so a simulator can run a year of rounds in a second and replay any failure from its seed.
"""
