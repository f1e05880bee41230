"""Model hubs: metadata, headers and resumable downloads."""
