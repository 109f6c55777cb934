"""The engine: topics, transactions, groups, queues and delayed messages over one store.

engine            composition: opens and closes the parts
config            settings
topic_operations  operations on topics and their messages
roles             a role that is held, or held elsewhere
held_roles        the roles of this process, opened and closed as the cluster says
coordination      the coordinator of transactions as a role
shards            the shards of groups, queues and delayed messages as roles
stats             counters for metrics
glance            the overview of topics, groups and queues
observer          topics of a shared store for readers that own nothing
"""
