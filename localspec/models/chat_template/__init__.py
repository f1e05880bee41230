"""Chat templates: rendering in a child process, built-in fallbacks, and thinking tags."""
