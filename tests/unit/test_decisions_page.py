"""The decision records: their ids are stable names, so each is unique, linkable, and exists where it is cited."""

import re

from tests.support.word_list import ROOT, page_text

PAGE = ROOT / "docs" / "decisions.md"
TEXT = PAGE.read_text()
SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
RECORD = re.compile(r'^- <a id="d(\d+)"></a>\*\*D(\d+)\. ', re.MULTILINE)
CITED = re.compile(r"\bD(\d+)\b")


def ids(text):
    return [int(number) for _, number in RECORD.findall(text)]


class TestRecords:
    def test_every_item_is_a_record(self):
        assert len(re.findall(r"^- ", TEXT, re.MULTILINE)) == len(ids(TEXT)) > 300

    def test_anchor_is_the_id(self):
        assert [(anchor, number) for anchor, number in RECORD.findall(TEXT) if anchor != number] == []

    def test_ids_are_unique(self):
        assert len(set(ids(TEXT))) == len(ids(TEXT))

    def test_ids_ascend_within_a_section(self):
        assert [section.splitlines()[0] for section in SECTIONS if ids(section) != sorted(ids(section))] == []


class TestCitations:
    def test_cited_records_exist(self):
        pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
        cited = {(page.name, int(number)) for page in pages for number in CITED.findall(page_text(page.read_text()))}
        assert {(name, number) for name, number in cited if number not in ids(TEXT)} == set()

    def test_link_leads_to_the_cited_record(self):
        links = [
            link
            for page in (ROOT / "docs").rglob("*.md")
            for link in re.findall(r"\[D(\d+)\]\((?:\.\./)?decisions\.md#d(\d+)\)", page.read_text())
        ]
        assert [link for link in links if link[0] != link[1]] == []
