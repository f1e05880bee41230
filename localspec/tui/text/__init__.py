"""The text of a transcript, wrapped to lines; no widgets."""
