"""Backups: images of a store at one moment, written elsewhere and restored.

images     the open images of this engine, by their ids
manifest   the manifest of a backup
writer     the writers of backups: to a directory, and to a stream
restoring  from a backup to a data directory
"""
