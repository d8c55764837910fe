"""Selection of the tests that `make test` leaves to `make test-long`, from a recording of the whole suite.

`tests/long_tests.txt` lists them: expensive tests whose branches cheaper tests cover as well.
`python -m tests.suite_selection` records and writes it; `tests/conftest.py` gives them the marker `long`, unless the
command line names a file.
"""
