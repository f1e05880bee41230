"""Conversations: settings, context limits, saving, export."""
