"""Jobs on whole topics."""
