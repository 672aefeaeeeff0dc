"""What all rooms stand on: trees of tensors, checks of arguments, seeds, whole files."""
