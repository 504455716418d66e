"""Uploads a compiled pipeline to KFP and opens its form in Chromium:  kind_form.py PIPELINE.yaml USER PICTURE.png

KFP_HOST and KFP_TOKEN say where and as whom it is uploaded. Exits with 1 where a field of the form is not on the page.
Never run as yet: infra/ci/kind.sh does.
"""

import os
import sys
from pathlib import Path

import kfp
import yaml
from chromium import browser

pipeline, user, picture = sys.argv[1:]
host = os.environ["KFP_HOST"]
client = kfp.Client(host=host, existing_token=os.environ["KFP_TOKEN"], namespace="posgap")
uploaded = client.upload_pipeline(pipeline, pipeline_name="posgap-form", namespace="posgap")
(version,) = client.list_pipeline_versions(uploaded.pipeline_id).pipeline_versions
fields = next(yaml.safe_load_all(Path(pipeline).read_text()))["root"]["inputDefinitions"]["parameters"]
with browser() as page:
    # What the gateway of Kubeflow adds for a user who has logged in.
    page.call("Network.setExtraHTTPHeaders", headers={"kubeflow-userid": user})
    query = f"pipelineId={uploaded.pipeline_id}&pipelineVersionId={version.pipeline_version_id}&ns=posgap"
    page.open(f"{host}/#/runs/new?{query}", height=3000)
    try:
        page.wait(f"document.body.innerText.includes({next(iter(fields))!r})")
        shown = page.js("document.body.innerText")
    finally:
        page.screenshot(Path(picture), whole=True)
if missing := [name for name in fields if name not in shown]:
    sys.exit(f"not on the page: {', '.join(missing)}")
print(f"all {len(fields)} fields of the form are on the page")
