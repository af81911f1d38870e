"""What makes trained models fast: weights laid out for decoding, decoder steps over preallocated caches."""
