"""Container images and the instances they run on."""
