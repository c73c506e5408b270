"""Only its presence is asked for."""
