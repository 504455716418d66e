"""Draws the form of the compiled pipeline as KFP's UI would, in a headless Chromium: docs/pipeline-form.png.

    python benchmarks/form_picture.py [pipelines/mitigation.yaml]

By the rules of NewRunParametersV2.tsx and NewRunParametersUtils.ts in kubeflow/pipelines (read at 7b70c7b95f, August
2026): a field for each parameter in the order of the names, labelled `name - type`, with its default in it, without
its description; a dropdown where there are literals; "Missing parameter." below what has no default. It is a drawing by
these rules and no picture of a cluster; the menu of `methods` is drawn open.
"""

import argparse
import html
import json
import sys
from pathlib import Path

from report import ROOT

from posgap.pipelines.compilation import load

sys.path.append(str(ROOT / "tests"))
from chromium import browser, program

TYPES = {
    "NUMBER_DOUBLE": "double",
    "NUMBER_INTEGER": "integer",
    "STRING": "string",
    "BOOLEAN": "boolean",
    "LIST": "list",
    "STRUCT": "dict",
}
OPEN = "methods"
STYLE = """
body { font: 16px/1.2 Roboto, Arial, sans-serif; color: #202124; margin: 24px; width: 980px }
h2 { font-size: 18px; margin: 0 0 22px }
.row { position: relative; margin-bottom: 8px; min-height: 78px; width: 600px }
.field { border: 1px solid #bbb; border-radius: 4px; padding: 15px 14px; height: 20px; position: relative;
         overflow: hidden; white-space: nowrap }
.label { position: absolute; top: -7px; left: 10px; background: #fff; padding: 0 5px; font-size: 12px; color: #666;
         z-index: 1 }
.select:after { content: "\\25be"; position: absolute; right: 14px; top: 14px; color: #666 }
.missing { color: red; margin-top: 2px }
.menu { position: absolute; left: 624px; top: -60px; width: 230px; border-radius: 4px; background: #fff; z-index: 2;
        box-shadow: 0 2px 8px #0006; padding: 6px 0 }
.menu div { padding: 5px 16px } .menu .chosen { background: #e8f0fe }
"""


def page(parameters: dict[str, dict]) -> str:
    """The form as a web page."""
    rows = "".join(_row(name, parameters[name]) for name in sorted(parameters))
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><h2>Run parameters</h2>{rows}"


def _row(name: str, parameter: dict) -> str:
    value, literals = parameter.get("defaultValue"), parameter.get("literals", [])
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))  # as JavaScript writes it
    label = f"<span class=label>{name} - {TYPES[parameter['parameterType']]}</span>"
    kind = "field select" if literals else "field"
    missing = "" if text or parameter.get("isOptional") else "<div class=missing>Missing parameter.</div>"
    choices = "".join(f"<div{' class=chosen' * (each == value)}>{html.escape(str(each))}</div>" for each in literals)
    menu = f"<div class=menu>{choices}</div>" if name == OPEN else ""
    return f"<div class=row>{label}<div class='{kind}'>{html.escape(text)}</div>{missing}{menu}</div>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiled", nargs="?", type=Path, default=ROOT / "pipelines" / "mitigation.yaml")
    parameters = load(parser.parse_args().compiled).parameters
    if not program():
        raise SystemExit("no Chromium on PATH")
    drawn = ROOT / "build" / "form.html"
    drawn.parent.mkdir(exist_ok=True)
    drawn.write_text(page(parameters), encoding="utf-8")
    with browser() as tab:
        tab.open(drawn.as_uri(), 1000, 90 + 86 * len(parameters))
        tab.settle()
        tab.screenshot(ROOT / "docs" / "pipeline-form.png")


if __name__ == "__main__":
    main()
