"""All methods side by side: notebook 15 and the demo."""
