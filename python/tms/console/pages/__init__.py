"""The pages, a module each, and the table of their addresses.

table           the addresses of all pages and actions
lists           long lists, a page at a time
problems        an error as a page
signing_in      sign in by token and link, sign out
overview        what is wrong now; rates, instances, the last hour
runbooks        the meaning of faults, and their remedies
hours           the charts of the last hour, for several pages
access          principals: tokens, sessions, grants, quotas; "may it, and why"
queues          queues of a namespace; one queue; its settings, what waits
dead_letters    the dead letters of a queue: why they died; moving back, mending, discarding
groups          groups of a namespace; one group; its reset
topics          topics of a namespace; one topic, its partitions and producers
messages        messages of a topic: a page of them, those that come, a range as a file
message         one message; its neighbours, its value as a file, its erasure
message_ranges  which messages a page shows, and where the next one begins
publishing      publish a message, or one again that was edited
publish_forms   the fields of that form, and the message in them
topic_settings  creating a topic, changing its settings
topic_removing  truncating and deleting a topic, erasing messages
delayed         topics with delayed messages; those of one topic; cancelling
transactions    transactions in progress; ending one; the invalid list
instances       the instances: work, events, owners of partitions, moves, drains
service         the service: versions, configuration, log levels, backups
"""
