"""Seeds of the simulation that are worth keeping: seeds that found something, seeds that together
cover the engine, and for each planted bug a seed that finds it.

    python -m sim.corpus    renews the cover (`make corpus`)
"""
