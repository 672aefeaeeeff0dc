"""The label ladder: notebooks 06 and 08."""
