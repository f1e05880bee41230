"""Model hubs: metadata, headers and resumable downloads.

Imports go one way (import-linter holds it):
cancellation ← hub_errors ← response_stream ← client, cached_file ← resumable_transfer ← download
"""
