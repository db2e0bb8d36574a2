"""`python -m experiments` shows what there is, without importing it."""

import subprocess
import sys

import pytest

from experiments import __main__ as listing


@pytest.fixture
def catalogue(tmp_path):
    main = '\nif __name__ == "__main__":\n    pass\n'
    files = {
        "solve.py": f'"""Does it solve?\n\nMore."""\nimport nothing_of_that_name{main}',
        "attention/mqar.py": f'"""Recall."""{main}',
        "attention/__init__.py": '"""Package."""',
        "library.py": '"""No command line."""',
        "bench/train.py": f'"""Elsewhere."""{main}',
        "_private.py": f'"""Hidden."""{main}',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return listing.catalogue(tmp_path)


def test_experiments_are_listed_with_their_question(catalogue):
    assert catalogue == {"attention.mqar": "Recall.", "solve": "Does it solve?"}


def test_the_table_fits_80_columns(catalogue):
    table = listing.listing({**catalogue, "long": "word " * 40})
    assert max(map(len, table.splitlines())) <= 80
    assert "Does it solve?" in table
    assert listing.listing({}) == "no experiments found"


def test_an_unknown_name_is_answered_with_close_ones(capsys):
    known = next(iter(listing.catalogue()))
    assert listing.main([known[:-1] + "_"]) == 2
    assert f"perhaps {known}" in capsys.readouterr().err


def test_listing_imports_nothing_heavy():
    code = (
        "import sys; from experiments.__main__ import main; main([]);"
        "assert not {'jax', 'numpy', 'flax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_experiment_of_this_repository_asks_a_question():
    for name, line in listing.catalogue().items():
        assert line != "(no docstring)", name
