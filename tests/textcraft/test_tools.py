"""The tool-call grammar: what is read, what is refused, and that no text whatever does anything else."""

import ast
import string
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from textcraft import Episode, Turn, load_tasks
from textcraft.literals import MAX_CHARS, MAX_DIGITS, LiteralError, read_call
from textcraft.tools import Craft, Finish, GetInfo, Invalid, ViewInventory, parse, render

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")  # pytest undoes what importing textcraft.literals does

repeatable = settings(derandomize=True, deadline=None)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.complex_numbers(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
)
hashables = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.tuples(inner))
literals = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.sets(hashables, min_size=1, max_size=4)
    ),
    max_leaves=12,
)
# Pieces of literals, glued at random: valid often enough, and wrong in every way.
# fmt: off
PIECES = [
    *"()[]{},:+-.'\"\\\n\r\t #_0179aefjlnruxBNR",
    "1", "12", "1.5", "1e5", "0x1f", "0o17", "0b11", "1_0", "2j", "...", "True", "False", "None",
    "(1,)", "[1, 2]", "{1: 2}", "{'a'}", "()", "{}", "set()", "# note\n", "\\\r\n", "\r\n", "\xe9", "\uff11",
    "'a'", '"b"', "'''c'''", '"""d"""', r"r'\d'", r"b'\xff'", "u'e'", r"rb'\1'", "f'x'",
    r"\x41", r"\u00e9", r"\U0001F600", r"\N{SNOWMAN}", r"\777", r"\q",
]
# fmt: on
pieces = st.sampled_from(PIECES)
soup = st.lists(pieces, max_size=12).map("".join)
wrapped_soup = st.tuples(st.sampled_from(["[]", "()", "{}", "''", '""']), soup).map(lambda pair: pair[1].join(pair[0]))


def read(text: str) -> object:
    """The one argument of f(text), or LiteralError."""
    try:
        _, positional, keyword = read_call(f"f({text})")
    except LiteralError:
        return LiteralError
    return positional[0] if len(positional) == 1 and not keyword else LiteralError


def read_by_python(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call = ast.parse(f"f({text})", mode="eval").body
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) == 1:
                return LiteralError if call.keywords else ast.literal_eval(call.args[0])
        except (ValueError, SyntaxError, TypeError):
            pass
    return LiteralError


def same(one: object, other: object) -> bool:
    """Equal, and in the types of all parts too; only the order of sets is free."""
    return one == other and sorted(repr(one)) == sorted(repr(other))


@repeatable
@given(literals)
def test_every_literal_is_read_as_python_reads_it(value):
    assert same(read(repr(value)), ast.literal_eval(repr(value)))


@settings(repeatable, max_examples=1000)
@given(soup | wrapped_soup)
@example("'a' \"b\" '''c'''")
@example(r"b'\777\u0041' rb'\''")
@example("'''\\\r\n\r'''")
@example("'\\\r\n'")
@example("r'\\\r\n'")
@example("1+2j")
@example("-1.5 - 0x1Fj")
@example("01")
@example("1__0")
@example("-\uff11")
@example("{1, 1.0, True}")
@example("{'a': 1, 'b': 2, 'a': 3}")
@example("# a comment\n1,")
def test_pieces_of_literals_are_read_as_python_reads_them(text):
    value, expected = read(text), read_by_python(text)
    # Left out on purpose, see textcraft/literals.py: set(), and arithmetic on numbers in parentheses.
    left_out = "set()" in text or ("(" in text and ("+" in text or "-" in text))
    assert same(value, expected) or (left_out and LiteralError in (value, expected))


names = st.text(min_size=1).filter(lambda name: "<" not in name)
calls = (
    st.lists(names, min_size=1, max_size=5).map(lambda items: GetInfo(tuple(items)))
    | st.builds(Craft, st.dictionaries(names, st.integers()), st.tuples(names, st.integers()))
    | st.sampled_from([ViewInventory(), Finish()])
)


@repeatable
@given(calls, st.text(alphabet=string.printable.replace("<", "")))
def test_a_rendered_call_is_read_back_whatever_text_stands_around_it(call, text):
    assert parse(f"{text}{render(call)}{text}") == call


def test_calls_are_written_in_the_syntax_of_the_prompt():
    assert render(GetInfo(("c1_i2_11", "c4_i2"))) == '<tool>get_info(["c1_i2_11", "c4_i2"])</tool>'
    craft = Craft({"m3_ore": 1, "m0_i1": 1}, ("m0_i2_20", 3))
    assert render(craft) == '<tool>craft({"m3_ore": 1, "m0_i1": 1}, ("m0_i2_20", 3))</tool>'
    assert render(ViewInventory()) == "<tool>view_inventory()</tool>"
    assert render(Finish()) == "<tool>finish()</tool>"


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("get_info(['a', 'b', 'a'])", GetInfo(("a", "b", "a"))),
        ("get_info(('a', 'b'))", GetInfo(("a", "b"))),
        (" get_info ( items = [ 'a' , ] , ) ", GetInfo(("a",))),
        ("craft({'a': 1}, ['b', 2])", Craft({"a": 1}, ("b", 2))),
        ("craft({'a': 1,  # one\n 'c': 2}, ('b', 2))", Craft({"a": 1, "c": 2}, ("b", 2))),
        ("craft({'a': 1, 'a': 2}, ('b', 2))", Craft({"a": 2}, ("b", 2))),
        ("craft({'a': 1}, target=('b', 2))", Craft({"a": 1}, ("b", 2))),
        ("craft(target=('b', 2), ingredients={})", Craft({}, ("b", 2))),
        ("craft({None: [1.5, b'x']}, (True, {'c'}))", Craft({None: [1.5, b"x"]}, (True, {"c"}))),
        ("view_inventory()", ViewInventory()),
        ("finish()", Finish()),
        ("finish('all done')", Finish()),
        ("finish(message='')", Finish()),
        ("finish({'done': [True, 1]})", Finish()),
    ],
)
def test_a_call_is_read(text, call):
    assert parse(f"Thinking, then acting.\n<tool>{text}</tool>\n") == call


NO_CALL = [
    "",
    "finish()",
    "<tool>finish()",
    "finish()</tool>",
    "</tool>finish()<tool>",
    "<tool>finish()</tool></tool>",
    "<tool><tool>finish()</tool>",
    "<tool>finish()</tool><tool>finish()</tool>",
    "<TOOL>finish()</TOOL>",
    "\uff1ctool\uff1efinish()\uff1c/tool\uff1e",
]
NOT_THE_GRAMMAR = [
    "",
    "finish",
    "finish(",
    "finish)",
    "finish())",
    "finish() finish()",
    "finish();",
    "finish('a', 'b')",
    "finish(text='a')",
    "finish(f'{1}')",
    "Finish()",
    "f\u0456nish()",
    "tools.finish()",
    "eval('1')",
    "view_inventory(1)",
    "get_info()",
    "get_info([])",
    "get_info('a')",
    "get_info(['a'], ['b'])",
    "get_info(['a'], items=['b'])",
    "get_info(items=['a'], items=['b'])",
    "get_info(['a', 1])",
    "get_info([['a']])",
    "get_info({'a'})",
    "get_info([a])",
    "get_info(['a' + 'b'])",
    "get_info([x for x in ['a']])",
    "get_info(*['a'])",
    "get_info([__import__('os').getcwd()])",
    "get_info(['a]')",
    "get_info(['a\nb'])",
    "get_info(['\n'])",
    "get_info(['\n'\n])",
    "get_info(['\\xz'])",
    "get_info([\u2018a\u2019])",
    "get_info(['a'\u3001'b'])",
    "craft({'a': 1})",
    "craft(['a', 1], ('b', 1))",
    "craft({'a', 'c'}, ('b', 1))",
    "craft({'a': 1}, 'b')",
    "craft({'a': 1}, ('b',))",
    "craft({'a': 1}, ('b', 1, 1))",
    "craft({'a': 1}, ('b', 2 * 3))",
    "craft({'a': 1}, ('b', 1 + 1))",
    "craft({'a': 1}, ('b', 10 ** 9))",
    "craft({'a': 1}, ('b', --1))",
    "craft({'a': 1}, ('b', 007))",
    "craft({'a': 1}, ('b', \uff11))",
    "craft({'a': 1}, ('b', +\u0661))",
    "craft({['a']: 1}, ('b', 1))",
    "craft({'a': 1 'c': 2}, ('b', 1))",
    "craft({'a': 1, 'c'}, ('b', 1))",
    "craft(target=('b', 1), {'a': 1})",
    "craft({'a': 1}, target=('b', 1), count=1)",
    "craft({**{'a': 1}}, ('b', 1))",
]


@pytest.mark.parametrize("reply", NO_CALL + [f"<tool>{text}</tool>" for text in NOT_THE_GRAMMAR])
def test_anything_else_is_invalid_and_says_why_in_one_line(reply):
    call = parse(reply)
    assert isinstance(call, Invalid)
    assert 10 < len(call.reason) < 200 and "\n" not in call.reason


def play(reply: str) -> Turn:
    """What a fresh episode makes of `reply`, which must be a whole answer whatever it is."""
    turn = Episode(load_tasks("val")[0], max_turns=2).step(reply)
    assert turn.done == (turn.kind == "finish") and turn.reward == 0
    turn.observation.encode("utf-8")
    return turn


@repeatable
@given(st.text() | soup.map("<tool>{}</tool>".format) | soup.map("<tool>craft({})</tool>".format))
def test_no_text_breaks_the_game(reply):
    play(reply)


@repeatable
@given(calls.map(render), st.data())
def test_no_mutation_of_a_valid_call_breaks_the_game(reply, data):
    for _ in range(data.draw(st.integers(1, 4))):
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(reply))] * 2)))
        reply = reply[:start] + data.draw(pieces | st.just(reply[start:end] * 2)) + reply[end:]
    play(reply)


# fmt: off
MONOTONOUS = [
    *"[({\"'\\-+.0_#< \n\r\uff11a", "[[", "({", "()", "{0:", "'''", '"""', "\\\n", "\\'", "b'", "''",
    "1,", "-1", "1+", "0x", "1e", "# ", "'\n", "'a',", "\\U0001f600", "\ud800", "\0", "lambda:", "not ", "f'{",
    "<tool>", "</tool>",
    "<tool>finish()</tool>",
]
FRAMES = ["%s", "<tool>%s", "<tool>get_info([%s])</tool>", "<tool>craft({%s}, ('a', 1))</tool>"]
# fmt: on


@pytest.mark.timeout(30)  # a guard against hanging, each takes milliseconds
@pytest.mark.parametrize("part", MONOTONOUS)
@pytest.mark.parametrize("frame", FRAMES)
def test_a_mebibyte_of_anything_gets_its_answer(part, frame):
    for size in (5_000, MAX_CHARS - 100, 2**20):
        turn = play(frame % (part * (size // len(part))))
        assert len(turn.observation) < 2 * MAX_CHARS


def test_a_reply_may_be_long_as_long_as_its_call_is_not():
    assert parse("x" * 2**20 + "<tool>finish()</tool>") == Finish()


def test_python_does_not_warn_about_a_reply():
    program = r"""from textcraft.tools import parse; print(parse(r"<tool>get_info(['\q', '\777'])</tool>"))"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert (done.stdout, done.stderr) == (f"{GetInfo((r'\q', chr(0o777)))}\n", "")


@pytest.mark.parametrize(("levels", "fits"), [(99, True), (200, False), (40_000, False)])
def test_brackets_nest_to_a_limit(levels, fits):
    call = parse(f"<tool>craft({{'a': {'[' * levels}{']' * levels}}}, ('b', 1))</tool>")
    assert isinstance(call, Craft if fits else Invalid)


@pytest.mark.parametrize("form", ["{}", "-{}", "{}.0", ".{}", "1e{}", "{}j", "0_{}", "0x{}", "0b{}"])
def test_numbers_of_ten_thousand_digits_are_invalid(form):
    number = form.format("1" * (40_000 if form == "0b{}" else 10_000))
    call = parse(f"<tool>craft({{'a': {number}}}, ('b', 1))</tool>")
    assert isinstance(call, Invalid) and "digits" in call.reason


def test_the_longest_number_is_read_in_every_base():
    for number in (10**MAX_DIGITS - 1, 1 - 10**MAX_DIGITS):
        for text in (str(number), hex(number), bin(number)):
            assert parse(f"<tool>craft({{'a': {text}}}, ('b', 1))</tool>") == Craft({"a": number}, ("b", 1))
