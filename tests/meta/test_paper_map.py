"""Tags in the source and the pages that explain them agree, and the check can tell if not."""

from tools.check_tags import (
    Place,
    Row,
    choice_problems,
    equation_problems,
    law_problems,
    problems,
    row_problems,
    rows,
)

HOME = Place("lgssm.LGSSM", "src/motes/lgssm.py", "The model. Paper: [Eq. lgssm]")
ROW = Row(["lgssm"], [("lgssm.LGSSM", "src/motes/lgssm.py")], ["test_paths"])


def test_source_tests_and_pages_agree():
    assert problems() == []


def test_a_row_is_read_with_its_tags_places_and_tests():
    page = "| `[Eq. v]` | [`a.B.c`](../src/motes/a.py) | test_one, test_two | as written |"
    assert rows(page) == [Row(["v"], [("a.B.c", "src/motes/a.py")], ["test_one", "test_two"])]


def test_an_equation_with_its_row_is_no_problem():
    assert list(equation_problems(HOME.docstring, [HOME], [ROW])) == []


def test_an_equation_without_a_row_is_a_problem():
    assert "no such row" in "".join(equation_problems(HOME.docstring, [HOME], []))


def test_an_equation_with_two_homes_is_a_problem():
    assert "2 times" in "".join(equation_problems(2 * HOME.docstring, [HOME], [ROW]))


def test_an_equation_in_a_comment_alone_is_a_problem():
    assert "outside" in "".join(equation_problems("# [Eq. lgssm]", [], [ROW]))


def test_a_row_that_names_another_function_is_a_problem():
    wrong = ROW._replace(places=[("lgssm.Path", "src/motes/lgssm.py")])
    assert "lgssm.LGSSM" in "".join(equation_problems(HOME.docstring, [HOME], [wrong]))


def test_a_row_without_a_tag_in_the_source_is_a_problem():
    assert "which no docstring" in "".join(equation_problems("", [], [ROW]))


def test_a_row_with_a_missing_function_or_test_is_a_problem():
    assert list(row_problems([ROW], [HOME], {"test_paths"})) == []
    assert "lgssm.LGSSM" in "".join(row_problems([ROW], [], {"test_paths"}))
    assert "test_paths" in "".join(row_problems([ROW], [HOME], set()))


def test_a_law_without_an_existing_test_is_a_problem():
    place = Place("a", "a.py", "Law: one is one\n(test_one_is_one, tests/test_a.py).\n\nArgs:")
    assert list(law_problems([place], {"test_one_is_one", "tests/test_a.py"})) == []
    assert len(list(law_problems([place], set()))) == 2
    assert "names no test" in "".join(law_problems([place._replace(docstring="Law: x.")], set()))


def test_choices_without_a_page_or_a_tag_or_in_disorder_are_problems():
    page = "## [Choice 1] One\n## [Choice 2] Two\n"
    assert list(choice_problems("[Choice 1] [Choice 2]", page)) == []
    assert "not in docs" in "".join(choice_problems("[Choice 1] [Choice 2] [Choice 3]", page))
    assert "nowhere in src" in "".join(choice_problems("[Choice 1]", page))
    assert "count from 1" in "".join(choice_problems("[Choice 2]", "## [Choice 2] Two\n"))
