"""Jars of the coprocessor, from where they are built to where region servers read them.

jar       a jar: where it comes from, what is wrong with it, its name
places    where region servers read jars from: a shared directory, HDFS
webhdfs   files of HDFS over HTTP

A wheel carries the jar of its version in this directory.
"""
