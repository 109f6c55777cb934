"""What every journaled room needs, once.

group_commit   requests that come together are written together
"""
