"""JSON on a terminal contains no control characters and reads back unchanged."""

import json

import pytest

NASTY = "a\x9b2Jb\u202ec\u2066d\u2028e\x7ff\u200eg"


@pytest.mark.parametrize(
    "words", ["dlq ls --json", "dlq show 1 --json", "dlq show 1 --raw", "dlq export", "dlq causes --json"]
)
def test_controls_are_escaped_or_left_out(run, store, words):
    store.dlq.put({"text": NASTY}, ValueError(NASTY), pipeline="p", key="1")
    answer = run(*words.split())
    assert answer.code == 0
    assert [char for char in "\x9b\u202e\u2066\u2028\x7f\u200e" if char in answer.out] == []
    document = json.loads(answer.out)
    assert ("\\u009b" in answer.out) == (words in {"dlq show 1 --raw", "dlq export"})
    if words == "dlq show 1 --raw":
        assert document == {"text": NASTY}
