"""What groups of consumers share: their positions."""
