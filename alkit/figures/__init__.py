"""What notebooks show: theme and charts, records that show themselves, and their first lines."""
