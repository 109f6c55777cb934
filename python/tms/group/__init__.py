"""What groups of consumers share: their positions, their members, and who has which partition."""
