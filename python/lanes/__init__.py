"""The lanes of `make test` and `make test-long`: the commands that run side by side, and their
times.

lanes      the lanes of both runs, and the command of each
running    starts lanes, shows their progress, prints their output
durations  the seconds of each test; no file may take too much of a worker
plugin     pytest's part: spreads tests over workers and notes their seconds
"""
