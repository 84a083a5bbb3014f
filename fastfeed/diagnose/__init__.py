"""Why a training is slow: what was seen (evidence), what follows from it (causes, advice), how it
is said (report)."""
