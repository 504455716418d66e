"""The table of faulty and peculiar endpoints in tests/helpers/peculiar_endpoints.md says what comes out of each."""

import peculiar_endpoints
import pytest
from peculiar_endpoints import PAGE, PECULIAR, row

from posgap.generation import openai


@pytest.mark.parametrize("peculiar", PECULIAR, ids=lambda peculiar: peculiar.words)
def test_the_page_says_what_comes_out_of_an_endpoint(peculiar, monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT", 0.002)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert f"| {' | '.join(row(peculiar))} |\n" in PAGE.read_text(encoding="utf-8")


def test_the_page_has_no_other_endpoints():
    page = PAGE.read_text(encoding="utf-8").partition("<!-- peculiar -->")[2].partition("<!-- /peculiar -->")[0]
    assert page.count("\n| ") == len(peculiar_endpoints.PECULIAR) + 2
