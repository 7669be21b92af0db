"""What plugs into it."""
