"""Process 1 of each host: reads the contract, starts the workers, ends with their outcome."""
