"""What studies of several families share."""
