"""This engine and its peers on one machine, in one run: the same weights and tokens, measured in turns.

Each contestant is a process of its own that answers a line of JSON with a line of JSON. The files named ours_*.py
run under this interpreter; those named peer_*.py are programs for another one, which has the peers installed and
not this package.
"""
