"""Who owns a shared store."""
