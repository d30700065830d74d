"""Reads `name(literal, key=literal, ...)` from untrusted text: Python's literals, never Python.

Lists, dicts and numbers are read here, in linear time with a bound on length, nesting and digits; a string with escapes
or a prefix is handed to Python's own parser, one at a time. `ast.parse` of the whole call would be the shorter module,
but it takes 2 to 5 microseconds and 1 KiB an element, which doubles the 99th percentile of `benchmarks/game.py`.
Two forms that nobody writes are left out: a sign or a complex sum applied to a number in parentheses, and `set()`.
"""

import ast
import re
import warnings
from typing import Any

MAX_CHARS = 100_000
MAX_NESTING = 100
MAX_DIGITS = 4_000  # Python itself refuses to convert more than 4,300 between text and int

_TOO_LARGE = 10**MAX_DIGITS
_TOO_LONG = f"a number has more than {MAX_DIGITS} digits"
_CONSTANTS = {"True": True, "False": False, "None": None, "...": ...}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_SEPARATORS = frozenset(",:)]}")
_QUOTES = frozenset("\"'")
_SIGNS = frozenset("+-")
_DIGITS_AND_POINT = frozenset("0123456789.")
_BASES = frozenset("xXoObB")
_IMAGINARY = frozenset("jJ")
_FLOAT_MARKS = frozenset(".eE")
# Every repetition is possessive, and an unterminated string runs to its end as one token: the scan never backtracks,
# so it is linear in any text. The last token is always the empty one.
_TOKEN = re.compile(
    r"""
    (?: [ \t\n\r\f] | \\(?:\r\n?+|\n) | \#[^\n\r]*+ )*+
    (
        [][(){},:=]
      | (?=["'rRbBuU]) [rRbBuU]{0,2}+ (?:
            \"{3} (?: [^"\\\0]++ | \\[^\0] | "(?!"") )*+ (?:\"{3})?+
          | '{3}  (?: [^'\\\0]++ | \\[^\0] | '(?!'') )*+ (?:'{3})?+
          | "     (?: [^"\\\n\r\0]++ | \\(?:\r\n|[^\0]) )*+ "?+
          | '     (?: [^'\\\n\r\0]++ | \\(?:\r\n|[^\0]) )*+ '?+
        )
      | 0[xXoObB][0-9a-fA-F_]*+
      | (?: [0-9][0-9_]*+ (?: \.[0-9_]*+ )?+ | \.[0-9][0-9_]*+ ) (?: [eE][+-]?+[0-9][0-9_]*+ )?+ [jJ]?+
      | [^\W\d]\w*+
      | \.\.\.
      | .
      | \Z
    )
    """,
    re.VERBOSE | re.DOTALL,
)
# Python warns about odd escapes such as "\q". By file name and for good: warnings.catch_warnings is not thread-safe.
_FILE_NAME = "<tool call>"
warnings.filterwarnings("ignore", module=_FILE_NAME)


class LiteralError(ValueError):
    """The text is not a call with literal arguments; the message says why, in words for the player."""


def read_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name, the positional and the keyword arguments of one call.

    Raises LiteralError for anything else, and for what exceeds MAX_CHARS, MAX_NESTING or MAX_DIGITS.
    """
    if len(text) > MAX_CHARS:
        raise LiteralError(f"the call has more than {MAX_CHARS} characters")
    tokens = [*_TOKEN.findall(text), ""]
    tokens.reverse()  # read from the end: the next token is tokens[-1]
    name = tokens.pop()
    if not name.isidentifier() or tokens[-1:] != ["("]:
        raise LiteralError("a call looks like name(arguments)")
    tokens.pop()
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    while tokens[-1] != ")":
        if tokens[-1].isidentifier() and tokens[-2] == "=":
            key = tokens.pop()
            tokens.pop()
            if key in keyword:
                raise LiteralError(f"argument {key[:40]} is given twice")
            keyword[key] = _value(tokens, 0)
        elif keyword:
            raise LiteralError("an argument without a name follows one with a name")
        else:
            positional.append(_value(tokens, 0))
        if not _take_comma(tokens):
            break
    _expect(tokens, ")")
    if tokens[-1]:
        raise LiteralError(f"unexpected {tokens[-1][:40]!r} after the call")
    return name, positional, keyword


def _take_comma(tokens: list[str]) -> bool:
    return tokens[-1] == "," and bool(tokens.pop())


def _expect(tokens: list[str], wanted: str) -> None:
    if tokens[-1] != wanted:
        found = repr(tokens[-1][:40]) if tokens[-1] else "the end of the call"
        raise LiteralError(f"expected {wanted!r}, found {found}")
    tokens.pop()


def _value(tokens: list[str], nesting: int) -> Any:
    """The literal at the head of `tokens`, which it takes off."""
    if nesting > MAX_NESTING:
        raise LiteralError(f"more than {MAX_NESTING} brackets inside each other")
    head = tokens[-1]
    if tokens[-2] in _SEPARATORS:  # nine of ten literals are a string or a count by itself
        if head.isdigit() and head.isascii() and len(head) < 10 and head[0] != "0":
            return int(tokens.pop())
        if head[0] in _QUOTES and head.count(head[0]) == 2 and head[0] == head[-1] and "\\" not in head:
            return tokens.pop()[1:-1]
    if head in _CLOSING:
        return _collection(tokens, nesting)
    if _is_string(head):
        return _strings(tokens)
    if head in _CONSTANTS:
        return _CONSTANTS[tokens.pop()]
    if head[:1] in _DIGITS_AND_POINT or head in _SIGNS:
        return _number(tokens)
    raise LiteralError(f"{head[:40]!r} is not a literal" if head else "the call ends in the middle")


def _collection(tokens: list[str], nesting: int) -> Any:
    opening = tokens.pop()
    closing = _CLOSING[opening]
    items: list[Any] = []
    values: list[Any] = []  # of a dict, whose keys are the items
    comma = False
    while tokens[-1] != closing:
        items.append(_value(tokens, nesting + 1))
        if opening == "{" and tokens[-1] == ":" and len(values) == len(items) - 1:
            tokens.pop()
            values.append(_value(tokens, nesting + 1))
        comma = _take_comma(tokens)
        if not comma:
            break
    _expect(tokens, closing)
    if opening == "[":
        return items
    if opening == "(":
        return items[0] if len(items) == 1 and not comma else tuple(items)
    if values and len(values) < len(items):
        raise LiteralError("a dict has a key without a value")
    try:
        return dict(zip(items, values, strict=True)) if values or not items else set(items)
    except TypeError:
        raise LiteralError("a list, dict or set cannot be a key or a member of a set") from None


def _number(tokens: list[str]) -> int | float | complex:
    """A number with its sign, or the two that make 1+2j one number."""
    number = _signed(tokens)
    if tokens[-1] not in _SIGNS or isinstance(number, complex):
        return number
    imaginary = _signed(tokens)
    if not isinstance(imaginary, complex):
        raise LiteralError("arithmetic is not evaluated")
    return number + imaginary


def _signed(tokens: list[str]) -> int | float | complex:
    sign = tokens.pop() if tokens[-1] in _SIGNS else "+"
    text = tokens.pop()
    has_base = text[1:2] in _BASES
    if len(text) > MAX_DIGITS and not has_base and sum(map(str.isdigit, text)) > MAX_DIGITS:
        raise LiteralError(_TOO_LONG)
    value: int | float | complex
    try:
        if text[:1] not in _DIGITS_AND_POINT:  # int() would take the digits of every script
            raise ValueError
        if text[-1] in _IMAGINARY:
            value = complex(0, float(text[:-1]))
        else:
            value = int(text, 0) if has_base or _FLOAT_MARKS.isdisjoint(text) else float(text)
    except ValueError:
        raise LiteralError(f"{text[:40]!r} is not a number") from None
    if isinstance(value, int) and value >= _TOO_LARGE:
        raise LiteralError(_TOO_LONG)
    return -value if sign == "-" else value


def _is_string(token: str) -> bool:
    return '"' in token or "'" in token


def _strings(tokens: list[str]) -> str | bytes:
    """Adjacent strings are one string, as in Python."""
    parts = []
    while _is_string(tokens[-1]):
        parts.append(tokens.pop())
    text = "\n".join(parts)  # not a space: two strings that are not closed would make one that is
    try:
        value: str | bytes = ast.literal_eval(ast.parse(f"({text})", _FILE_NAME, "eval"))
    except (SyntaxError, ValueError):
        raise LiteralError(f"{text[:40]!r} is not a string: see its quotes, prefixes and escapes") from None
    return value
