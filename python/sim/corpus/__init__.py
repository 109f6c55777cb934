"""Seeds of the simulation that are worth keeping: those that found something, those that together
cover the engine, and for each planted bug one that finds it.

    python -m sim.corpus    makes the cover anew (`make corpus`)
"""
