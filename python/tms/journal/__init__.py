"""What every journaled room needs, once.

group_commit   requests that come together are written together
journaled      a state that follows from a journal: replay, decide, append, apply, snapshot
"""
