"""What is to be trained, with which settings, and how far that has come."""
