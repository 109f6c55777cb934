"""Audits of topics: whether everything is there, and as it was stored.

running    an audit, divided into tasks
stored     where its blocks come from
checking   what must hold of the blocks of a range
"""
