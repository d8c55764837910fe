"""The site's Markdown reader gets lists and tables in the form that it needs."""

from docs.generate.site import ROOT, for_site, llms_text


def test_lists_and_tables_after_a_sentence_get_a_blank_line() -> None:
    assert for_site("Two:\n- one\n- two\nend") == "Two:\n\n- one\n- two\nend"
    assert for_site("A table:\n| a |\n|---|\n| 1 |\nend") == "A table:\n\n| a |\n|---|\n| 1 |\n\nend"


def test_blocks_of_list_items_are_indented_by_four_and_fences_keep_their_shape() -> None:
    assert for_site("- one\n  more\n\n  ```\n  a\n    b\n  ```\n") == (
        "- one\n    more\n\n    ```\n    a\n      b\n    ```\n"
    )
    assert for_site("```\n- one\n  two\n```") == "```\n- one\n  two\n```"


def test_llms_txt_lists_documents_by_kind_with_their_questions() -> None:
    text = llms_text(sorted((ROOT / "docs/how-to").glob("*.md")) + sorted((ROOT / "skills").glob("*.md")))
    assert text.startswith("# AstraFlow\n\n> ")
    assert "- [How do I mend a run?](skills/mend-a-run/)" in text.partition("## Tutorials")[0]
    assert "](docs/how-to/mcp/)" in text.partition("## How-to")[2].partition("## Reference")[0]
