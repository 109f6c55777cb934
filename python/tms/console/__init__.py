"""The console: pages of the service for people, rendered here and read in a browser.

settings    the section of the settings, and the front end, which loads the rest when it is asked
console     answers requests below `/console`: sessions, pages, files, errors
visit       one request for a page: its query or form, its questions to operations, its rights
forms       forms: their fields, and their tokens against forgery
attention   what is wrong, in the answers of operations
charts      series of values to SVG, with a text that says the same
cells       keys, values and headers of messages as text
rendering   templates to HTML, and how numbers, times and bytes are written
commands    the `tms` command and the HTTP request that do what an action does
pace        how much pages take that go on by themselves
live        parts of pages that are rendered anew while they are looked at
pages       the pages, a module each

Invariants

* A page gets everything by asking declared operations (`server.asking`), with the principal of its
  visitor. The console itself has no access to the engine.
* Values of messages, names and errors reach a page only through templates that escape them. Pages
  have no inline script or style, and their policy allows none.
* A request that changes something is a form with a token of this browser and session, from a page
  of the console itself; the answer leads to a page that can be loaded again.
"""
