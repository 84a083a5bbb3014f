"""Reports of a diagnosis: as JSON, in words on the terminal and on one HTML page, as a trace.
Nothing judges here."""
