"""The command `tms`.

Standard output carries data only, standard error talk only. Nothing heavy is imported before a
command needs it.
"""
