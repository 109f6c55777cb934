"""Putting TMS into an HBase, watching it there, taking it out again: what `tms hbase` does.

tables      what the tables are to be like: attributes, families, regions (values only)
plan        the steps from the tables as they are to the tables as they should be (values only)
deploy      reads the tables' state, carries out steps, asks every region
health      what is wrong with a deployment, and what to do about it
jar         a jar of the coprocessor: where it comes from, what is wrong with it, its name
jar_places  where region servers read jars from: a shared directory, HDFS
webhdfs     files of HDFS over HTTP

A wheel carries the jar of its version in this directory.
"""
