"""Cost model of a feed: what a batch costs, and what a change gains.

Imports only core and errors.
"""
