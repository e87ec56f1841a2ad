"""Serve the Model Context Protocol on standard input and output, so that an agent hands work to other agents.

`messages` reads and writes lines, `server` speaks the protocol, `schemas` describes the nine tools, and the other
modules carry them out through the services of other packages. Nothing here writes to a store itself, decides who may
answer a request, or keeps anything that a client needs after this process has ended.
"""
