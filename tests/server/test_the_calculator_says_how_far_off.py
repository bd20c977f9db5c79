"""Count × bytes per item against measured growth, as a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.web.calculator import calculator, result

KIB, MIB, GIB = 2**10, 2**20, 2**30


def told(count: str, each: str, growth: float = 16 * MIB) -> str:
    return result(count, each, growth, "generation")


@pytest.mark.parametrize("count, each", [("", "1 KiB"), ("16", ""), ("", "")])
def test_a_missing_number_is_asked_for(count: str, each: str) -> None:
    assert told(count, each).startswith("Give both numbers")


@pytest.mark.parametrize("count", ["many", "-3", "nan", "inf", "1e999"])
def test_what_is_no_count_is_named(count: str) -> None:
    assert told(count, "1 KiB").startswith(f"{count} is no count")


@pytest.mark.parametrize("each", ["large", "-1 KiB", "1 KiBs", "1e9"])
def test_what_is_no_size_is_named(each: str) -> None:
    assert told("16", each).startswith(f"{each} is no size")


def test_more_than_there_are_numbers_for_is_no_error() -> None:
    assert told("1e308", "1 TiB") == "1e308 × 1 TiB is more than any memory."


def test_a_factor_of_a_thousand_is_said() -> None:
    assert told("16", "1 KiB") == (
        "Off by a factor of about 1,000: 16 × 1.00 KiB explains 16.00 KiB of 16.00 MiB per generation. "
        "So much is often a unit: KiB for MiB."
    )


def test_what_fits_adds_up_and_too_much_is_said_as_well() -> None:
    assert told("16", "1 MiB").startswith(
        "It adds up: 16 × 1.00 MiB explains 16.00 MiB of 16.00 MiB"
    )
    assert told("16", "3 MiB").startswith(
        "Too much by a factor of 3.0: 16 × 3.00 MiB would be 48.00 MiB"
    )
    assert told("16", "1.5 MiB").startswith("Near, within a factor of 2: ")
    assert "explains nothing" in told("0", "1 MiB")


def suspected(**suspect: Any) -> dict[str, Any]:
    first = {
        "name": "app.Env",
        "role": "type",
        "count_per_generation": 16.0,
        "bytes_per_generation": None,
    }
    growth = {"estimate": 16 * MIB, "low": 0, "high": 0}
    finding = {
        "status": "confirmed",
        "suspects": [{**first, **suspect}],
        "growth_bytes_per_generation": growth,
    }
    return {"findings": [finding], "growth_bytes_per_generation": growth}


def fields(section: Any) -> list[str]:
    return [field.value for field in section.ask.fields]


def test_nothing_is_asked_while_nothing_grows() -> None:
    assert calculator(None, (), "epoch", {}) is None
    still = {"findings": [], "growth_bytes_per_generation": {"estimate": -3.0}}
    assert calculator(still, (), "epoch", {}) is None


def test_it_begins_with_the_first_suspect_and_what_one_more_costs() -> None:
    holders = [{"type": "app.Env", "bytes_each": 1024.0}]
    assert fields(calculator(suspected(), holders, "epoch", {})) == ["16", "1.00 KiB"]
    by_rate = suspected(bytes_per_generation=16.0 * MIB)
    # All of the growth over the count is no measurement: it would always add up.
    assert fields(calculator(by_rate, (), "epoch", {})) == ["16", ""]
    assert fields(calculator(suspected(), (), "epoch", {})) == ["16", ""]


def test_the_numbers_of_the_address_win_and_the_rest_of_it_is_kept() -> None:
    address = {"process": "rank 0 main", "count": "3", "each": "1 KiB"}
    section = calculator(suspected(), (), "epoch", address)
    assert section is not None and section.ask is not None
    assert fields(section) == ["3", "1 KiB"]
    assert section.ask.kept == (("process", "rank 0 main"),)


def test_the_page_works_it_out_from_its_address(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 0, 90)
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["findings"])
    page = api.get("/runs/r1?count=16&each=1+KiB&process=rank+0+main").text
    assert "Off by a factor of 640: 16 × 1.00 KiB explains 16.00 KiB of 10.00 MiB" in page
    assert 'value="&lt;b&gt;"' in api.get("/runs/r1?count=%3Cb%3E&each=1").text
