"""Values that every room shares: batches, records, counters, positions and orders.

Imports only fastfeed.errors.
"""
