from tests.containers.upgrade import refusal_of

REASON = "error: cannot resume 'journal.sqlite': another release wrote it [journal.schema_mismatch]"


def test_the_last_refusal_of_the_journal_in_the_logs_is_the_reason() -> None:
    logs = f"started\nan earlier refusal [journal.schema_mismatch]\n\x1b[31m{REASON}\x1b[0m\n"
    assert refusal_of(logs) == REASON


def test_logs_without_a_refusal_give_no_reason() -> None:
    assert refusal_of("started\nerror: cannot reach weights:7002 [channel.unreachable]\n") == ""
