"""The bounds of the product, and how a seed draws them.

source      finds every bound in the source
table       says of each how small it is drawn, or why it is not
drawing     draws all of them for one run, and sets them while it lasts
"""
