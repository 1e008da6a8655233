"""The films as tests of labelled proposals read them."""

from __future__ import annotations

from functools import cache

import pytest

from warehouse.corpora.corpus import Corpus
from warehouse.corpora.films import read_films
from warehouse.errors import RequestError
from warehouse.public_data.catalogue import locate


@cache
def films() -> Corpus:
    """The films with summaries of up to 300 characters, read once; skips the test where they are missing."""
    try:
        return read_films(locate("films"), 300)
    except RequestError as error:
        pytest.skip(str(error))
