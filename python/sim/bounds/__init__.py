"""The bounds of the product, and how a seed draws them.

source      finds every bound in the source
table       gives the least value of each drawn bound, and the reason for each other one
drawing     draws all of them for one run, and sets them while it lasts
"""
