"""What a user asks for: sweep and cluster files, read, checked and planned."""
