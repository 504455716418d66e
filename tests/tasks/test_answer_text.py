"""posgap's own normalisation: what numbers, signs and symbols survive, and the boundaries of words in each script."""

import unicodedata

import pytest

from posgap.tasks.answer_text import stands_in
from posgap.tasks.metrics import METRICS

RIGHT = [
    *(("north", "It lies in the North."), ("1994.0", "1994"), ("O'Dell", "It was O’Dell."), ("a dog", "dog")),
    *(("Søren Åkerblöm", unicodedata.normalize("NFD", "Es kam Søren Åkerblöm.")), ("1990-1995", "1990–1995")),
    *(("서울", "한국의 수도는 서울이다."), ("서울", "서울에서는"), ("1994", "それは１９９４年です。")),
    *(("القاهرة", "القَاهِرَة"), ("القاهرة", "والقاهرة"), ("1994", "۱۹۹۴"), ("İzmir", "Orası izmir şehridir.")),
    *(("İstanbul", "istanbul'da"), ("cooperative", "a co\u00adoperative"), ("co-operative", "cooperative")),
    *(("12,500", "There were 12 500 people."), ("12,500", "12\u202f500"), ("3,5", "3.5 m"), ("5 km", "5km")),
    *(("Anna Berg", "Anna <b>Berg</b>"), ("Anna Berg", "**Anna** Berg"), ("Müller & Co", "M&uuml;ller &amp; Co.")),
    *(("office of finance", "the oﬃce of ﬁnance"), ("U.S.", "in the US."), ("J.R.R. Tolkien", "J. R. R. Tolkien")),
    *(("Jean-Paul Sartre", "Jean Paul Sartre"), ("5 percent", "5%"), ("-5", "−5 °C"), ("1/2", "½ cup")),
    *(("山野市", "首都は山野市である"), ("サンフランシスコ", "答えはサンフランシスコです。")),
    *(("straße", "STRASSE"), ("ΟΔΟΣ", "οδος"), ("Italia", "in l'Italia"), ("2024", "on 2024-05-17")),
    *(("[SEP]", "is [SEP]."), ("C++", "C++."), ("กรุงเทพ", "คือกรุงเทพมหานคร")),
]
WRONG = [
    *(("3.5", "35"), ("35", "3.5"), ("-5", "5"), ("5", "-5"), ("Vitamin A", "vitamin C"), ("C++", "C"), ("C", "C++")),
    *(("U.S.", "They did not tell us"), ("5%", "$5"), ("5%", "5"), ("10-12", "1012"), ("1990", "1990-1995")),
    *(("2.10", "21.0"), ("2.10", "2.1"), ("Ali", "quality"), ("Dell", "O'Dell"), ("서울", "서울대학교")),
    *(("イタリア", "イタリアン"), ("1:30", "130"), ("R2", "R2D2"), ("", "nothing"), ("-", "nothing")),
]


@pytest.mark.parametrize(("answer", "text"), RIGHT)
def test_an_answer_is_found_in_whatever_form_it_is_written(answer, text):
    assert stands_in(answer, text)


@pytest.mark.parametrize(("answer", "text"), WRONG)
def test_numbers_signs_and_words_survive(answer, text):
    assert not stands_in(answer, text)


def test_f1_counts_characters_where_a_script_has_no_spaces():
    assert METRICS["f1"].score("首都は山野市", ["山野市"]) == pytest.approx(2 * 3 / 9)
    assert METRICS["f1"].score("the red fox", ["red fox"]) == 1
