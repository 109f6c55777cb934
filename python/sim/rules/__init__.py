"""What must hold of every history.

checker   every rule of the log and its transactions; asks the others
queues    rules of queues
later     rules of delayed messages
gone      rules of compaction and erasing
cut       rules of truncation, and of what is handed out though it is gone
findings  what can be found
"""
