"""Why a training is slow. The evidence flows from hooks and sample through judge to report; run
starts it all. Each of these rooms imports only those before it."""
