"""Documents as pages: what is refused, what is never executed, where links lead, and rules for every document."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from leakline_server.limits import MAX_QUERY_LENGTH
from leakline_server.web import docs as documents
from leakline_server.web.docs import (
    MOST_HITS,
    REPOSITORY,
    Listed,
    Section,
    links_of,
    search,
    sections_of,
    write,
)

NASTY = """# <script>alert(1)</script>

<img src=x onerror=alert(1)> and <!-- a comment -->

[run](javascript:alert(1)) ![seen](https://elsewhere.example/pixel.png) [quoted](x.md "a\\" onclick=\\"alert(1)")

| <b>a</b> | b |
| --- | ---: |
| `<i>` | 2 |

```html
</code></pre><script>alert(1)</script>
```
"""


NO_DOCUMENTS = (
    "/docs/nothing", "/docs/../README", "/docs/..%2f..%2fpyproject.toml", "/docs/%2fetc%2fpasswd",
    "/docs/images/take.py", "/docs/reference/generate.py", "/docs/reference/generate",
    "/docs/a%00b", "/docs/settings.md.md",
)  # fmt: skip


def test_anything_but_a_document_is_not_found(api: TestClient) -> None:
    for path in NO_DOCUMENTS:
        answer = api.get(path, follow_redirects=True)
        assert answer.status_code == 404, path
        assert "import" not in answer.text and "root:" not in answer.text


def test_html_in_a_document_is_shown_as_text() -> None:
    made = write(NASTY, "nasty.md")
    tags = set(re.findall(r"<(\w+)", made.body))
    assert tags <= {
        "h1", "p", "a", "div", "table", "thead", "tbody", "tr", "th", "td", "pre", "code",
    }  # fmt: skip
    assert made.title == "<script>alert(1)</script>"
    assert not re.search(r"<[^>]* (on\w+|style)=", made.body)
    assert 'href="javascript' not in made.body
    assert "elsewhere.example" not in re.sub(r"&lt;.*?&gt;", "", made.body)
    # Numbers are aligned right without an inline style.
    assert (
        '<td class="number">2</td>' in made.body and "<td><code>&lt;i&gt;</code></td>" in made.body
    )
    assert "begin" not in write("a\n\n<!-- bench-scale: begin -->\nb\n", "x.md").body


@pytest.mark.parametrize(
    ("document", "link", "leads"),
    [
        ("run.md", "settings.md#in-the-server", "/docs/settings#in-the-server"),
        ("run.md", "reference/api.md", "/docs/reference/api"),
        ("reference/api.md", "../README.md", "/docs"),
        ("reference/api.md", "series.md#x", "/docs/reference/series#x"),
        ("fixes.md", "github-actions.yml", "/docs/github-actions.yml"),
        ("run.md", "../ARCHITECTURE.md", REPOSITORY + "ARCHITECTURE.md"),
        ("run.md", "#here", "#here"),
        ("run.md", "https://example.com/a.md", "https://example.com/a.md"),
    ],
)
def test_a_link_leads_to_the_page_of_its_document(document: str, link: str, leads: str) -> None:
    assert f'href="{leads}"' in write(f"[there]({link})", document).body


def test_anchors_match_those_of_the_repository_and_are_unique() -> None:
    made = write("# T\n\n## Does it `add up`?\n\n## Same\n\n## Same\n", "x.md")
    assert [each.anchor for each in made.headings] == ["does-it-add-up", "same", "same-1"]


def test_a_picture_has_its_dark_version_if_there_is_one() -> None:
    text = "![a](images/run-light.png)\n\n![b](images/lone-light.png)"
    body = write(text, "x.md", frozenset({"images/run-light.png", "images/run-dark.png"})).body
    names = ("run-light", "run-dark", "lone-light")
    assert re.findall(r'src="([^"]+)"', body) == [f"/docs/images/{name}.png" for name in names]
    assert body.count('alt="a"') == 2 and body.count("only-") == 2


def test_the_index_lists_only_our_groups_and_documents() -> None:
    text = "# D\n\n## Start\n\n- [One](one.md)\n- [Away](https://example.com/x.md) [Up](../up.md)\n"
    assert list(links_of(text)) == [Listed("Start", "one.md", "One")]


def test_previous_and_next_follow_the_index() -> None:
    listed = tuple(Listed("G", f"{name}.md", name) for name in "abc")
    made = write("# T\n", "b.md")
    page = documents.document_page("b.md", made, listed)
    assert page.before and page.after
    assert (page.before.address, page.after.address) == ("/docs/a", "/docs/c")
    first = documents.document_page("README.md", made, listed)
    assert first.before is None and first.after and first.after.address == "/docs/a"
    unlisted = documents.document_page("x.md", made, listed)
    assert unlisted.before is None and unlisted.after is None


def test_a_document_is_also_found_by_its_file_name(api: TestClient) -> None:
    for asked, leads in (
        ("/docs/settings.md", "/docs/settings"),
        ("/docs/reference/series.md", "/docs/reference/series"),
        ("/docs/README.md", "/docs"),
        ("/docs/", "/docs"),
        ("/docs/settings/", "/docs/settings"),
    ):
        answer = api.get(asked, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (308, leads), asked
        assert api.get(leads).status_code == 200


def test_every_document_is_a_page_under_the_policy(api: TestClient) -> None:
    names = sorted(name for name in documents.files() if name.endswith(".md"))
    assert len(names) > 20
    for document in names:
        name = document.removesuffix(".md").removesuffix("README").rstrip("/")
        answer = api.get(f"/docs/{name}".rstrip("/"))
        assert answer.status_code == 200, document
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert not re.search(r"<[^>]* style=", answer.text), document
        for source in re.findall(r'<img src="([^"]+)"', answer.text):
            picture = api.get(source)
            assert picture.headers["content-type"] == "image/png", source
            assert picture.headers["x-content-type-options"] == "nosniff"
    to_copy = api.get("/docs/github-actions.yml")
    assert to_copy.headers["content-type"].startswith("text/plain")


# -- the table of contents ---------------------------------------------------------------------------------


def test_a_table_of_contents_has_both_levels_until_it_is_long() -> None:
    both = write("# T\n\n## A\n\n### A1\n\n## B\n", "x.md")
    assert [(h.anchor, h.level) for h in documents.contents_of(both)] == [
        ("a", 2), ("a1", 3), ("b", 2),
    ]  # fmt: skip
    long = write("# T\n\n" + "".join(f"## H{n}\n\n### Deep {n}\n\n" for n in range(20)), "x.md")
    assert [h.anchor for h in documents.contents_of(long)] == [f"h{n}" for n in range(20)]
    assert documents.contents_of(write("# T\n\n## A\n\n## B\n", "x.md")) == ()


def test_every_long_document_has_a_table_of_contents(api: TestClient) -> None:
    for each in documents.listed():
        headings = [h for h in documents.read(each.document).headings if h.level == 2]
        page = api.get(each.address).text
        contents = page.partition('id="contents-title"')[2].partition("</nav>")[0]
        if len(headings) >= 3:
            assert [h.anchor for h in headings if f'href="#{h.anchor}"' not in contents] == [], each


# -- search ------------------------------------------------------------------------------------------------

MADE = """# Cooking

Rice & <b>beans</b>.

## Boil `rice`

Use water and salt. A ricecooker helps.

| spice | price |
| --- | ---: |
| saffron | 9 |

## Fry

Use oil. Rice can be fried, too.
"""


def made_sections() -> list[Section]:
    written = write(MADE, "cooking.md")
    return list(sections_of(written.title, written.body, "/docs/cooking"))


def test_a_section_is_the_text_below_a_heading() -> None:
    first, boil, fry = made_sections()
    assert (first.heading, first.address) == ("", "/docs/cooking")
    assert first.text == "Rice & <b>beans</b>."
    assert (boil.heading, boil.address) == ("Boil rice", "/docs/cooking#boil-rice")
    assert "saffron 9" in boil.text and "oil" not in boil.text
    assert fry.title == "Cooking"


@pytest.mark.parametrize(
    ("query", "headings", "has_all"),
    [
        ("rice", ["Boil rice", "", "Fry"], True),
        ("RICE salt", ["Boil rice"], True),
        ("cooking oil", ["Fry"], True),
        ("saff", ["Boil rice"], True),
        # The beginning of a word matches, its end does not.
        ("cooker", [], False),
        ("oil salt", ["Boil rice", "Fry"], False),
        ("how do I fry?", ["Fry"], True),
        ("the", [], False),
        ("", [], True),
        ("?!", [], True),
        ("(rice", ["Boil rice", "", "Fry"], True),
    ],
)
def test_a_search_finds_sections_with_all_or_most_words(
    query: str, headings: list[str], has_all: bool
) -> None:
    found = search(query, made_sections())
    assert [hit.heading for hit in found.hits] == headings
    assert found.has_all == has_all
    assert found.total == len(headings)


def test_an_excerpt_marks_the_words_and_escapes_the_text() -> None:
    (hit,) = search("beans", made_sections()).hits
    assert str(hit.excerpt) == "Rice &amp; &lt;b&gt;<mark>beans</mark>&lt;/b&gt;."
    text = "one two three " * 100 + "needle and thread" + " four five six" * 100
    (hit,) = search("thread needle", [Section("T", "H", "/docs/t#h", text)]).hits
    assert "<mark>needle</mark> and <mark>thread</mark>" in hit.excerpt
    assert hit.excerpt.startswith("… ") and hit.excerpt.endswith(" …")
    assert len(hit.excerpt.striptags()) < 300


def test_results_are_counted_and_the_best_are_shown() -> None:
    sections = [Section("T", f"H{n}", f"/docs/t#h{n}", "needle") for n in range(MOST_HITS + 5)]
    found = search("needle", sections)
    assert (len(found.hits), found.total) == (MOST_HITS, MOST_HITS + 5)


def test_the_search_page_links_to_the_headings(api: TestClient) -> None:
    answer = api.get("/docs", params={"q": "forecast memory"})
    assert answer.status_code == 200
    addresses = re.findall(r'<li><a href="(/docs/[^"]+)">', answer.text.partition("hits")[2])
    assert addresses
    for address in addresses:
        path, _, anchor = address.partition("#")
        page = api.get(path)
        assert page.status_code == 200
        assert not anchor or f'id="{anchor}"' in page.text, address
    assert 'value="forecast memory"' in answer.text


def test_a_search_without_results_says_so_and_executes_nothing(api: TestClient) -> None:
    answer = api.get("/docs", params={"q": '<script>alert("x")</script>'})
    assert "No section contains" in answer.text
    assert "<script>alert" not in answer.text
    for empty in ("", "  ", "\x00"):
        assert "<h1 id=" in api.get("/docs", params={"q": empty}).text
    assert api.get("/docs", params={"q": "x" * (MAX_QUERY_LENGTH + 1)}).status_code == 422
    assert api.get("/docs", params={"q": "rice " * 300}).status_code == 200
    assert api.head("/docs", params={"q": "memory"}).status_code == 200


def test_every_document_has_the_search_field(api: TestClient) -> None:
    for address in ("/docs", "/docs/compared", "/docs/reference/series"):
        assert 'action="/docs" role="search"' in api.get(address).text
