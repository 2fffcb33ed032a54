"""One job in every place: what its script is given, and what is left of it, must be alike."""
