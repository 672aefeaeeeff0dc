"""What the door promises (what you give is what is trained), for every method, the ordinary case
first."""
