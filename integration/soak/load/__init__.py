"""Processes that load the service. A job is made by the plan:

    kind name seed       what it does, what it and its messages are called, what it draws from
    url                  the service, or a proxy before it that loses requests and answers
    directory stop       where its ledger and readings go; the file whose appearance ends it
    topics               what it may use: by name the partitions, and what the plan says of each
    options              what else its kind takes

A job ends with exit code 0 when it was told to stop, or has done enough.
"""
