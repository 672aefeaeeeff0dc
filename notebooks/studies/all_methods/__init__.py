"""All methods side by side: notebook 00 and the demo."""
