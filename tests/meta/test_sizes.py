"""Nothing has grown too long to be read at one sitting."""

from tools.check_sizes import FUNCTION_LINES, MODULE_LINES, problems, too_long


def test_every_module_and_function_is_short_enough():
    assert problems() == []


def test_a_long_function_is_named_and_its_docstring_does_not_count():
    body = "    x = 1\n" * (FUNCTION_LINES - 1)
    assert list(too_long(f"def f():\n{body}", "m.py")) == []
    assert list(too_long(f'def f():\n    """One\n\n    two.\n    """\n{body}', "m.py")) == []
    (line,) = too_long(f"def f():\n{body}    x = 2\n", "m.py")
    assert line.startswith("m.py:1: f ")


def test_a_long_module_is_named():
    assert list(too_long("x = 1\n" * MODULE_LINES, "m.py")) == []
    (line,) = too_long("x = 1\n" * (MODULE_LINES + 1), "m.py")
    assert "split" in line
