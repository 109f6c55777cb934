"""Every reader, as users read: `python -m integration.soak.readers TASK`.

log         over HTTP as JSON and Arrow; consumers by each start and page size, on both event
            loops; `bus.fetch`; filters; CDAP's poll
derived     groups, queues, views, delayed messages
offline     the directory without its service: opened by a program, `tms fsck`
spark       batches, the archive, `compact-check`
"""
