"""What all rooms stand on.

tree            nested tuples, lists and dicts of tensors
arguments       what a call was given, and whether it may be that
seeds           generators as functions of a key
files, paths    files that are whole at any moment, and the project's folders
"""
