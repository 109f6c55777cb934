"""The rules that every history must satisfy.

checker   every rule of the log and its transactions; runs the others
queues    rules of queues
later     rules of delayed messages
gone      rules of compaction and erasing
classic   rules of groups of Kafka's classic protocol
cut       rules of truncation, and of gone messages that are handed out
findings  kinds of findings
"""
