"""Fast inference with trained models: weights laid out for decoding, decoder steps over preallocated caches."""
