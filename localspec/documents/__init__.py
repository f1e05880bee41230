"""Documents: the text of PDF, Word, OpenDocument, EPUB, HTML and text files, in parts.

`reading.py` reads a file. What is no plain text is read in a process of its own
(`reading_child.py`), with limits of time and memory, because such files are untrusted
and their formats are not simple.
"""
