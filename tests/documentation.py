"""pytest plugin: the code blocks of README and docs/, and all doctests, are tests."""

import doctest
import os
import pathlib
import tempfile

import pytest
import sybil
from sybil.document import PythonDocStringDocument
from sybil.integration.pytest import SybilItem
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Examples of one document build on each other: undo the shuffle within it."""
    documents: dict[pathlib.Path, list[int]] = {}
    for index, item in enumerate(items):
        if isinstance(item, SybilItem):
            documents.setdefault(item.path, []).append(index)
    for places in documents.values():
        ordered = sorted((items[i] for i in places), key=lambda item: item.example.line)
        for place, item in zip(places, ordered, strict=True):
            items[place] = item
