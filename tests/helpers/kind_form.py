"""Opens the form of an uploaded pipeline in Chromium:  kind_form.py PIPELINE.yaml ADDRESS USER PICTURE.png

ADDRESS is what `posgap pipeline compile --host` printed. Exits with 1 where a field of the compiled pipeline is not
on the page. infra/ci/kind.sh runs it; it has only met a stand-in for the page as yet.
"""

import re
import sys
from pathlib import Path

import yaml
from chromium import browser

pipeline, address, user, picture = sys.argv[1:]
host, identity, version = re.fullmatch(r"(.*)/#/pipelines/details/([^/]+)/version/([^/?]+).*", address).groups()
fields = next(yaml.safe_load_all(Path(pipeline).read_text()))["root"]["inputDefinitions"]["parameters"]
with browser() as page:
    # What the gateway of Kubeflow adds for a user who has logged in.
    page.call("Network.setExtraHTTPHeaders", headers={"kubeflow-userid": user})
    page.open(f"{host}/#/runs/new?pipelineId={identity}&pipelineVersionId={version}&ns=posgap", height=3000)
    try:
        page.wait(f"document.body.innerText.includes({next(iter(fields))!r})")
        shown = page.js("document.body.innerText")
    finally:
        page.screenshot(Path(picture), whole=True)
if missing := [name for name in fields if name not in shown]:
    sys.exit(f"not on the page: {', '.join(missing)}")
print(f"all {len(fields)} fields of the form are on the page")
