"""How objects of the library are shown: texts for a terminal, tables and pictures for a notebook.

Functions here take plain data and return text or self-contained HTML: no script, no request to a network, nothing that
is not escaped, and a bounded length. They load when something is shown; the classes themselves only say what they hold.
"""
