"""Bugs to plant: each undoes a promise of the product, and the simulation must find it.

bugs  all of them, and how one is planted
gone  those of compaction and erasing
"""
