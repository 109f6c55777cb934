"""The lanes of `make test` and `make test-long`: what runs side by side, and how long it took.

lanes      the lanes of both runs, and the command of each
running    starts lanes, shows how far they are, reports what they printed
durations  the seconds of each test; no file may take too much of a worker
plugin     pytest's part: spreads tests over workers and notes their seconds
"""
