"""Will a pair run here, how fast, and what to change: by formulas, without llama.cpp."""
