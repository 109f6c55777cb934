"""Processes that load the service. The plan makes the jobs:

    kind name seed       the work, the prefix of names, and the seed of its `Random`
    url                  the service, or a proxy before it that loses requests and answers
    directory stop       the directory of its ledger and readings; the file whose appearance ends it
    topics               the topics of the job, with the plan's settings for each
    options              further arguments of its kind

A job ends with exit code 0 when the stop file appears, or when its work is done.
"""
