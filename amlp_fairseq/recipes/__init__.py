"""From a corpus to results: prepare, train, distill, evaluate, reproduce, and tables of what came out."""
