"""The label ladder: notebook 21, which has the depth of 0.3's 08."""
