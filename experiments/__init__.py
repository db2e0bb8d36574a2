"""One file, one question; `python -m experiments` lists them."""
