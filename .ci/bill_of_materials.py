#!/usr/bin/env python3
"""Print a CycloneDX bill of materials: the interpreter, its distributions, the pages' scripts and Debian packages."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from typing import Any

from leakline_server.paths import STATIC


def main() -> None:
    found = [
        _component("application", "python", platform.python_version(), "pkg:generic/python"),
        *sorted(map(_distribution, distributions()), key=lambda each: each["name"]),
        *_scripts(),
        *_debian_packages(),
    ]
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": found}
    json.dump(bill, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


def _component(kind: str, name: str, version: str, url: str, licence: str = "") -> dict[str, Any]:
    reference = f"{url}@{version.replace('+', '%2B')}"
    component = {
        "type": kind,
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
    }
    # As stated by the package, which need not be an SPDX identifier.
    return {**component, "licenses": [{"license": {"name": licence}}]} if licence else component


def _distribution(found: Distribution) -> dict[str, Any]:
    about = found.metadata
    name = about["Name"].lower().replace("_", "-")
    classified = [
        text.rpartition(" :: ")[2]
        for text in about.get_all("Classifier", [])
        if text.startswith("License :: ")
    ]
    # The full text of a licence is not its name.
    named = (about.get("License") or "").strip()
    licence = (
        about.get("License-Expression") or "; ".join(classified) or named.partition("\n")[0][:100]
    )
    return _component("library", name, found.version, f"pkg:pypi/{name}", licence)


def _scripts() -> list[dict[str, Any]]:
    """Return the third-party scripts, from the README.txt next to each."""
    notes = sorted(STATIC.glob("vendor/*/README.txt"))
    words = [
        re.search(r"npm package (\S+)\), version (\S+), (\S+) licence", note.read_text())
        for note in notes
    ]
    return [
        _component("library", *found.group(1, 2), f"pkg:npm/{found[1]}", found[3])
        for found in words
        if found
    ]


def _debian_packages() -> list[dict[str, Any]]:
    if shutil.which("dpkg-query") is None:
        return []
    shown = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\n"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pairs = sorted({tuple(line.split("\t")) for line in shown.stdout.splitlines()})
    return [
        _component("library", name, version, f"pkg:deb/debian/{name}") for name, version in pairs
    ]


if __name__ == "__main__":
    main()
