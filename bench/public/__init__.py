"""Diagnosis of public training scripts, as their authors wrote them.

The package holds names, commits, paths, licences and recipes. The scripts are not part of it: a
folder of checkouts is an argument of `python -m bench.public`.
"""
