"""Who asks, and what that one may do.

grants     which grants cover a resource: pure
tokens     bearer tokens: made, read and digested: pure
records    tokens and grants in the store, the same at every instance of a cluster
"""
