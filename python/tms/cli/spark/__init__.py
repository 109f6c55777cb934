"""`tms spark`: topics in Spark.

checks     what Spark needs here, and whether it is there
command    the commands
jobs/      jobs on whole topics
"""
