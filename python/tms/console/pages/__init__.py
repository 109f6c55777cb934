"""The pages, a module each, and the table of their addresses.

table        the addresses of all pages and actions
lists        long lists, a page at a time
problems     an error as a page
signing_in   sign in, sign out
groups       groups of a namespace; one group; its reset
topics       topics of a namespace; one topic; its settings
"""
