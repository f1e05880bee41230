"""The engine process as the parent sees it: commands, events, timeouts, exit causes and
log.
"""
