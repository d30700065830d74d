"""Reads `name(literal, key=literal, ...)` from untrusted text: Python's literals, never Python.

`ast.literal_eval` warns itself that deep nesting can exhaust memory or the C stack, and it prints warnings about odd
escapes. This reader accepts the same literals (strings with every prefix and escape, numbers, True, False, None, ...,
lists, tuples, dicts, sets, comments between them) in linear time with a bound on length, nesting and digits. Two forms
that nobody writes are left out: a sign or a complex sum applied to a number in parentheses, and `set()`.
"""

import re
import unicodedata
from typing import Any

MAX_CHARS = 100_000
MAX_NESTING = 100
MAX_DIGITS = 4_000  # Python itself refuses to convert more than 4,300 between text and int

_TOO_LARGE = 10**MAX_DIGITS
_TOO_LONG = f"a number has more than {MAX_DIGITS} digits"
_CONSTANTS = {"True": True, "False": False, "None": None, "...": ...}
_BRACKETS = frozenset("[({")
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
_STRING = re.compile(
    r"""(?P<prefix>[a-zA-Z]*+)(?P<quotes>"{3}|'{3}|["'])(?P<body>(?:[^\\"']++|\\.|(?!(?P=quotes)).)*+)(?P=quotes)""",
    re.DOTALL,
)
_STRING_PREFIXES = frozenset(("", "r", "u", "b", "br", "rb"))

_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:(?P<octal>[0-7]{{1,3}})|(?P<hex>x{_HEX}{{2}}|u{_HEX}{{4}}|U{_HEX}{{8}})"
    r"|N\{(?P<name>[^{}]*)\}|(?P<other>.))",
    re.DOTALL,
)
_BYTES_ESCAPE = re.compile(rf"\\(?:(?P<octal>[0-7]{{1,3}})|(?P<hex>x{_HEX}{{2}})|(?P<other>.))(?P<name>)", re.DOTALL)
_PLAIN_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PLAIN_ESCAPES |= {char: char for char in "\\'\""} | {"\n": ""}


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
        if tokens[-1] != ",":
            break
        tokens.pop()
    _expect(tokens, ")")
    if tokens[-1]:
        raise LiteralError(f"unexpected {tokens[-1][:40]!r} after the call")
    return name, positional, keyword


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
    if _is_string(head):
        return _strings(tokens)
    if head in _BRACKETS:
        return _collection(tokens, nesting)
    if head in _CONSTANTS:
        return _CONSTANTS[tokens.pop()]
    if head[:1] in _DIGITS_AND_POINT or head in _SIGNS:
        return _signed_number(tokens)
    raise LiteralError(f"{head[:40]!r} is not a literal" if head else "the call ends in the middle")


def _collection(tokens: list[str], nesting: int) -> Any:
    opening = tokens.pop()
    if opening == "[":
        return _items(tokens, "]", nesting)[0]
    if opening == "(":
        items, comma = _items(tokens, ")", nesting)
        return items[0] if len(items) == 1 and not comma else tuple(items)
    return _dict_or_set(tokens, nesting)


def _items(tokens: list[str], closing: str, nesting: int) -> tuple[list[Any], bool]:
    """The values up to `closing`, and whether a comma follows the last one."""
    items: list[Any] = []
    comma = False
    while tokens[-1] != closing:
        items.append(_value(tokens, nesting + 1))
        comma = tokens[-1] == ","
        if not comma:
            break
        tokens.pop()
    _expect(tokens, closing)
    return items, comma


def _dict_or_set(tokens: list[str], nesting: int) -> dict[Any, Any] | set[Any]:
    entries: dict[Any, Any] = {}
    is_set = False
    while tokens[-1] != "}":
        key, value = _value(tokens, nesting + 1), None
        is_set = is_set or (not entries and tokens[-1] != ":")
        if not is_set:
            _expect(tokens, ":")
            value = _value(tokens, nesting + 1)
        try:
            entries[key] = value
        except TypeError:
            raise LiteralError("a list, dict or set cannot be a key or a member of a set") from None
        if tokens[-1] != ",":
            break
        tokens.pop()
    _expect(tokens, "}")
    return set(entries) if is_set else entries


def _signed_number(tokens: list[str]) -> int | float | complex:
    """A number, its sign, and the imaginary part that makes 1+2j one number."""
    sign = tokens.pop() if tokens[-1] in _SIGNS else "+"
    number = _number(tokens.pop())
    number = -number if sign == "-" else number
    if tokens[-1] not in _SIGNS or isinstance(number, complex):
        return number
    sign = tokens.pop()
    imaginary = _number(tokens.pop())
    if not isinstance(imaginary, complex):
        raise LiteralError("arithmetic is not evaluated")
    return number - imaginary if sign == "-" else number + imaginary


def _number(text: str) -> int | float | complex:
    if text[:1] not in _DIGITS_AND_POINT:  # int() would take the digits of every script
        raise LiteralError(f"{text[:40]!r} is not a number")
    has_base = text[1:2] in _BASES
    if len(text) > MAX_DIGITS and not has_base and sum(map(str.isdigit, text)) > MAX_DIGITS:
        raise LiteralError(_TOO_LONG)
    try:
        if text[-1:] in _IMAGINARY and not has_base:
            return complex(0, float(text[:-1]))
        if not has_base and not _FLOAT_MARKS.isdisjoint(text):
            return float(text)
        value = int(text, 0)
    except ValueError:
        raise LiteralError(f"{text[:40]!r} is not a number") from None
    if value >= _TOO_LARGE:
        raise LiteralError(_TOO_LONG)
    return value


def _is_string(token: str) -> bool:
    return '"' in token or "'" in token


def _strings(tokens: list[str]) -> str | bytes:
    """Adjacent strings are one string, as in Python."""
    value = _string(tokens.pop())
    while _is_string(tokens[-1]):
        more = _string(tokens.pop())
        if type(value) is not type(more):
            raise LiteralError("text and bytes stand side by side")
        value += more  # type: ignore[operator]
    return value


def _string(text: str) -> str | bytes:
    match = _STRING.fullmatch(text)
    if match is None:
        raise LiteralError("a string is not closed")
    prefix, body = match["prefix"].lower(), match["body"]
    if prefix not in _STRING_PREFIXES:
        raise LiteralError(f"{prefix!r} is no string prefix")
    body = body.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads source
    if "b" in prefix:
        if not body.isascii():
            raise LiteralError("bytes hold ASCII characters only")
        text = body if "r" in prefix else _BYTES_ESCAPE.sub(_unescape, body)
        return bytes(ord(char) & 0xFF for char in text)  # Python cuts "\777" to its low byte too
    return body if "r" in prefix or "\\" not in body else _ESCAPE.sub(_unescape, body)


def _unescape(match: re.Match[str]) -> str:
    if match["octal"]:
        return chr(int(match["octal"], 8))
    if match["hex"]:
        code = int(match["hex"][1:], 16)
        if code <= 0x10FFFF:
            return chr(code)
    elif match["name"]:
        try:
            return unicodedata.lookup(match["name"])
        except KeyError:
            pass
    else:
        needs_digits = "x" if match.re is _BYTES_ESCAPE else "xuUN"
        other = match["other"]
        # As in Python, a backslash before any other character stands for itself.
        if other is not None and other not in needs_digits:
            return _PLAIN_ESCAPES.get(other, match[0])
    raise LiteralError(f"no character is written {match[0][:40]}")
