"""`tms hbase`: putting TMS into an HBase, watching it there, taking it out again.

tables    what the tables are to be like: attributes, families, regions (values only)
plan      from what is there and what is wanted to the steps between (values only)
jars      jars of the coprocessor: what is one, and where region servers read them from
deploy    reading what is there, carrying out steps, asking every region
health    what is wrong with a deployment, and what to do about it
options   what the commands share: the store's address, how steps are shown
command   the commands
"""
