"""Pages run their own scripts alone, what they save holds no formula, and pictures show text."""

import base64
import hashlib
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.text import Text
from written_sweeps import write_sweep

from posgap.measurement.plots import position_curves, save_picture
from posgap.measurement.report import _file, _scripts, content_policy, render_page
from posgap.measurement.sweeps import read_sweep
from posgap.rollout.plots import distribution_curves


def test_a_page_runs_its_own_scripts_alone():
    page = render_page("posgap.verbs", "index.html.j2", [], None, title="Results", groups=[])
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.replace("&#39;", "'").split(";")}
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules["default-src"] == ["'none'"] and len(scripts) == 1
    assert rules["script-src"] == [f"'sha256-{each}'" for each in hashes]
    assert not re.search(r"<[^>]+\son\w+=", page)  # a handler in an attribute would not run
    assert len(set(content_policy(_scripts(True)).split("'sha256-"))) == 5
    assert "script-src" not in content_policy()


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the script")
def test_saved_answers_hold_no_formula():
    cells = ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "a=1", -0.5, None, 'x"y']
    script = f"{_file('saving.js')}\nconsole.log(JSON.stringify(csv([{json.dumps(cells)}])));"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout).partition("\r\n")[2]
    assert rows.startswith("'=1+1,'+1,'-1,'@a,'\t=1,\"'\r=1\",a=1,-0.5,,")


def test_a_picture_shows_a_foreign_label_as_it_is_written(tmp_path, pictures, capfd, recwarn):
    """No formula of matplotlib's, which may be a wrong one, and no control character in a warning of its font."""
    sweep = read_sweep(write_sweep(tmp_path / "sweep", [0.9] * 5)).model_copy(update={"label": "\x1b[2J\a $x^{ 中"})
    save_picture(figure := position_curves([sweep]), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert any(text.get_text().startswith(r"\x1b[2J\x07 $x^{ 中: gap ") for text in figure.findobj(Text))
    assert not list(recwarn) and capfd.readouterr() == ("", "")


def test_a_picture_s_own_text_is_neither_escaped_nor_a_formula(tmp_path, pictures):
    """Lines of a label, and the numbers of a logarithmic axis."""
    figure = distribution_curves({"in two\nlines": np.geomspace(1e-4, 0.5, 20)})
    save_picture(figure, tmp_path / "curve.png")
    texts = [text.get_text() for text in figure.findobj(Text) if text.get_text()]
    assert {"in two\nlines", "0.001", "0.1"} <= {*texts} and not [text for text in texts if "$" in text]
