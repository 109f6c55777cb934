"""`tms spark …`: jobs on whole topics.

running     what they share: options, the session of Spark, progress
archiving   archive, restore
reporting   report
auditing    compact-check
querying    sql
"""
