"""Reports of a diagnosis: on the terminal, as JSON, as one HTML page, as a trace for Perfetto.
Nothing judges here. Imports diagnosis, evidence and steps."""
