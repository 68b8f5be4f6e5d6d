"""From vectors to scores."""
