"""Mutation testing: small changes of the code that the tests of its room must notice.

rooms    the changed files of a room, and the tests that must notice
making   the mutants of a room, and a seeded sample of them (operators of mutmut)
running  each mutant in a process of its own against the tests that reach its lines
report   the score, survivors as diffs, and the sentences about equivalent ones
"""
