"""Installing TMS in an HBase, watching it, removing it: the functions of `tms hbase`.

tables      the wanted tables: attributes, families, regions (values only)
plan        the steps from the present tables to the wanted ones (values only)
deploy      reads the tables' state, carries out steps, probes every region
health      the findings about a deployment, and advice (values only)
jar         a jar of the coprocessor: finding, checking and naming it
jar_places  the directories from which region servers read jars: shared ones, HDFS
webhdfs     files of HDFS over HTTP

A wheel carries the jar of its version in this directory.
"""
