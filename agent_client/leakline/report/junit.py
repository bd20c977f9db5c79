"""A gate as JUnit XML, which every CI shows: one test case for each condition, failed where it holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ..text_format import printable


@dataclass(frozen=True, slots=True)
class Case:
    """``failed``: the sentence, where the condition holds; ``details`` stand below it."""

    name: str
    failed: str = ""
    details: Sequence[str] = ()


def junit(suite: str, cases: Sequence[Case], properties: Mapping[str, object]) -> str:
    """One suite; ends with a line end."""
    failures = sum(bool(case.failed) for case in cases)
    root = Element("testsuites")
    told = SubElement(
        root, "testsuite", name="leakline", tests=str(len(cases)), failures=str(failures), errors="0", skipped="0"
    )  # fmt: skip
    known = {name: value for name, value in properties.items() if value is not None}
    if known:
        listed = SubElement(told, "properties")
        for name, value in known.items():
            SubElement(listed, "property", name=name, value=_xml(str(value)))
    for case in cases:
        one = SubElement(
            told, "testcase", classname=_xml(f"leakline.{suite}"), name=_xml(case.name)
        )
        if case.failed:
            failure = SubElement(one, "failure", message=_xml(case.failed), type=case.name)
            failure.text = _xml("\n".join([case.failed, *case.details]))
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Without what XML has no place for."""
    return printable(text, "\n")
