"""`tms fsck`: what is damaged in a store, below any engine, and mending it.

verify   every map is read and compared with the records
repair   what can be mended is; damaged maps are kept beside
"""
