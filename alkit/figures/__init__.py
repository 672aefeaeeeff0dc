"""What notebooks show: theme and charts, dashboards, previews, and their first lines."""
