"""Countries: the real graph and its documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from warehouse import Fact, RequestError
from warehouse.corpora.countries import read_countries

DATA = Path(__file__).parents[4] / "shared" / "data" / "kg_countries"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the real countries are not at {DATA}")
@pytest.mark.slow
def test_the_real_countries() -> None:
    corpus = read_countries(DATA)
    assert Fact("Austria", "capital", "Vienna", ("factbook:europe/au#Government",), "kg_countries") in corpus.facts
    assert ("Singapore", "capital", "Singapore (city)") in {(fact.subject, fact.relation, fact.object) for fact in corpus.facts}
    borders = Counter(bool(fact.documents) for fact in corpus.facts if fact.relation == "borders")
    assert borders[True] > 600 and borders.total() == 649
    ids = {document.id for document in corpus.documents}
    assert all(document in ids for fact in corpus.facts for document in fact.documents)
    assert {failure.kind for failure in corpus.failures} == {"no_document"}


def test_a_folder_without_countries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no file"):
        read_countries(tmp_path)
