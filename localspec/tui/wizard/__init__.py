"""The wizard's content: shortlist, what-if dials and pair details, without the screen."""
