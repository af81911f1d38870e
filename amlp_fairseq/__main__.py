"""``python -m amlp_fairseq`` is the command ``amlp-fairseq``."""

from amlp_fairseq.cli.main import main

if __name__ == "__main__":
    main()
