"""What belongs to chat templates: fallbacks, thinking, and the process that renders."""
