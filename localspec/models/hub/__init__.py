"""Access to a model hub: listing, headers, search and downloads."""
