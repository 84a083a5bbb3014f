"""How a diagnosis is said: on the terminal, as JSON, as one HTML page, as a trace for Perfetto.
Nothing judges here."""
