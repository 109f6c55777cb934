"""What a program does with groups."""
