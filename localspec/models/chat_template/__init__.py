"""Chat templates: rendering in a child process, built-in fallbacks, thinking tags."""
