"""pytest plugin: the code blocks of README and docs/, and all doctests, are tests."""

import doctest
import os
import pathlib
import tempfile

import sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

ROOT = str(pathlib.Path(__file__).parents[1])


def in_a_scratch_folder(namespace):
    # Examples may write run folders; they must not land in the checkout.
    namespace["_scratch"] = tempfile.TemporaryDirectory()
    namespace["_home"] = os.getcwd()
    os.chdir(namespace["_scratch"].name)


def leave(namespace):
    os.chdir(namespace["_home"])
    namespace["_scratch"].cleanup()


markdown = sybil.Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["*.md"],
    path=ROOT,
    setup=in_a_scratch_folder,
    teardown=leave,
)
docstrings = sybil.Sybil(
    parsers=[DocTestParser(doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)],
    patterns=["*.py"],
    excludes=["tests/*", "tests/*/*", "tests/*/*/*"],
    path=ROOT,
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = (markdown + docstrings).pytest()
