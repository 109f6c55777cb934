"""Backups: a store as it was at one moment, kept elsewhere and brought back.

images     those of this engine that are being read, by their ids
manifest   what a backup says of itself
keeping    a directory that has a backup, and a stream: how the next one gets there
restoring  from a backup to a data directory
"""
