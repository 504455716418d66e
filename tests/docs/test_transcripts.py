"""Blocks of pages that show commands with what they print: the script that runs them again."""

import os
import re
import sys
from datetime import date

import pytest
from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import transcripts

PAGE = """\
# A page

Run again by `benchmarks/transcripts.py` on 2026-01-01, x.

`said.py` holds

```python
print("3 of 4")
```

```console
$ python said.py
2 of 4
```

1 s, exit code 0.

```console
$ printf 'one 1\\ntwo 2.5\\nthree 3,000\\n' && false
...
two 1.5
four
```
"""


def test_commands_are_run_again_and_the_page_says_what_is_shown(tmp_path):
    (name, text), *more = transcripts.FILE.findall(PAGE)
    assert (name, text, more) == ("said.py", 'print("3 of 4")\n', [])
    (tmp_path / name).write_text(text)
    text, gone = transcripts.again(PAGE, tmp_path, dict(os.environ))
    now = re.sub(r"\d+ s, exit", "0 s, exit", text)
    assert "```console\n$ python said.py\n3 of 4\n```\n\n0 s, exit code 0.\n" in now
    assert now.endswith("&& false\n...\ntwo 2.5\n...\n```\n")  # what its end is, the page does not say
    assert gone == ["four"] and "2026-01-01" not in now and f"on {date.today()}, " in now
    part, gone = transcripts.again(PAGE, tmp_path, dict(os.environ), "said.py")
    assert part.endswith(PAGE.rpartition("```console")[2]) and gone == []
    assert "on 2026-01-01, x." in part  # a page of which a part was run is not of today


def test_a_page_with_lines_that_are_gone_is_not_written(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (file := tmp_path / "docs" / "p.md").write_text(PAGE)
    (tmp_path / "said.py").write_text('print("3 of 4")')
    monkeypatch.setattr(transcripts, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["transcripts.py", "p", "--write"])
    with pytest.raises(SystemExit, match="no longer prints"):
        transcripts.main()
    assert file.read_text() == PAGE
    file.write_text(PAGE.replace("four\n", ""))
    transcripts.main()
    assert "3 of 4" in file.read_text() and "two 2.5" in file.read_text()


def test_without_a_mark_all_lines_are_shown_or_the_ends_of_many():
    assert transcripts.shown(["old"], ["a", "b"]) == ("a\nb\n", [])
    many = [str(number) for number in range(17)]
    assert transcripts.shown([], many)[0].split() == [*many[:8], "...", *many[9:]]
    assert transcripts.shown([], many[:16])[0].split() == many[:16]


def test_lines_alike_are_found_in_their_order():
    before, now = ["...", "1 of 2", "2 of 2"], ["a", "1 of 3", "b", "3 of 3", "4 of 4"]
    assert transcripts.shown(before, now) == ("...\n1 of 3\n...\n3 of 3\n...\n", [])
    assert transcripts.shown(["...", "b", "1 of 2"], ["1 of 3", "b"]) == ("...\nb\n", ["1 of 2"])


def test_what_a_run_has_of_its_own_is_no_difference():
    bar = "1 ████▏  97.5 (87.1 to 99.6)  best"
    assert transcripts.like(bar) == transcripts.like("1 █ 5.0 (-1 to 9)") == "1# (# to #)"
    assert transcripts.like(bar) != transcripts.like("10 █ 5.0 (-1 to 9)")  # another position
    assert transcripts.like("wrote 1,500 files, 3.") != transcripts.like("wrote 1,500 file, 3.")
    assert list(transcripts.lines_of("1 %\r50 %\n\x1b[31mred\x1b[0m\n\n")) == ["50 %", "red"]
