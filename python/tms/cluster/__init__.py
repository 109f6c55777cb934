"""Owners of a shared store, and the instances of a cluster that share one."""
