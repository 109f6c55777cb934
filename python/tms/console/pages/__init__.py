"""The pages, a module each, and the table of their addresses.

table        the addresses of all pages and actions
lists        long lists, a page at a time
problems     an error as a page
signing_in   sign in by token and link, sign out
access       principals: tokens, sessions, grants, quotas; "may it, and why"
topics       topics of a namespace; one topic; its settings
"""
