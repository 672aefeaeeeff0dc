"""The base of all rooms: trees of tensors, checks of arguments, seeds, whole files."""
