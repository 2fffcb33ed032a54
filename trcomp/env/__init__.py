"""The environment of a job: devices found, ranks laid out, variables per rank."""
