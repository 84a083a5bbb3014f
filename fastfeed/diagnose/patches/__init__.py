"""Changes that a diagnosis advises, as edits of the user's source: one small class for each
kind."""
