"""What operators run: the service itself, and looks at what it stores."""
