"""Authentication and authorization.

decisions  a principal, a verb and a resource: allowed, or an error; quotas and the audit log
grants     which grants cover a resource: pure
jwt        tokens of an issuer that is trusted: what they must say: pure
jwks       the keys of an issuer, and signatures by them: pure
tokens     bearer tokens: made, read and digested: pure
scram      SCRAM at the side that knows verifiers: pure
quotas     how much a principal may still ask for: pure
sessions   sessions of people at the console, and links for them, in the store
records    tokens, grants and quotas in the store, the same at every instance of a cluster
"""
