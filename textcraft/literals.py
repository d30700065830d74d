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
_CONSTANTS = {"True": True, "False": False, "None": None, "...": ...}
_SIMPLE_ESCAPES = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SIMPLE_ESCAPES |= {char: char for char in "\\'\""}

# Every repetition is possessive, and an unterminated string runs to its end as one token: the scan never backtracks,
# so it is linear in any text. The last token is always the empty one.
_TOKEN = re.compile(
    r"""
    (?: [ \t\n\r\f] | \\\r?\n | \#[^\n\r]*+ )*+
    (
        [rRbBuU]{0,2}+ (?:
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
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|N\{([^{}]*)\}|(\r\n|.))", re.DOTALL
)
_BYTES_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|()()()(\r\n|.))", re.DOTALL)


class LiteralError(ValueError):
    """The text is not a call with literal arguments; the message says why, in words for the player."""


def read_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name, the positional and the keyword arguments of one call.

    Raises LiteralError for anything else, and for what exceeds MAX_CHARS, MAX_NESTING or MAX_DIGITS.
    """
    if len(text) > MAX_CHARS:
        raise LiteralError(f"the call has more than {MAX_CHARS} characters")
    tokens = _TOKEN.findall(text)
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
    token = tokens[-1]
    if not token:
        raise LiteralError("the call ends in the middle")
    if _is_string(token):
        return _strings(tokens)
    tokens.pop()
    if token[0] in "0123456789" or (token[0] == "." and len(token) > 1 and token != "..."):
        return _number_or_sum(_number(token), tokens)
    if token == "[":
        return _items(tokens, "]", nesting)[0]
    if token == "(":
        items, is_tuple = _items(tokens, ")", nesting)
        return tuple(items) if is_tuple else items[0]
    if token == "{":
        return _dict_or_set(tokens, nesting)
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if token in ("+", "-"):
        number = _number(tokens.pop())
        return _number_or_sum(-number if token == "-" else number, tokens)
    raise LiteralError(f"{token[:40]!r} is not a literal")


def _items(tokens: list[str], closing: str, nesting: int) -> tuple[list[Any], bool]:
    """The values up to `closing`, and whether they are more than one value in parentheses."""
    items: list[Any] = []
    comma = False
    while tokens[-1] != closing:
        items.append(_value(tokens, nesting + 1))
        comma = tokens[-1] == ","
        if not comma:
            break
        tokens.pop()
    _expect(tokens, closing)
    return items, comma or len(items) != 1


def _dict_or_set(tokens: list[str], nesting: int) -> dict[Any, Any] | set[Any]:
    keys: list[Any] = []
    values: list[Any] = []
    is_dict: bool | None = None
    while tokens[-1] != "}":
        keys.append(_value(tokens, nesting + 1))
        if is_dict is None:
            is_dict = tokens[-1] == ":"
        if is_dict:
            _expect(tokens, ":")
            values.append(_value(tokens, nesting + 1))
        if tokens[-1] != ",":
            break
        tokens.pop()
    _expect(tokens, "}")
    try:
        return set(keys) if is_dict is False else dict(zip(keys, values, strict=True))
    except TypeError:
        raise LiteralError("a list, dict or set cannot be a key or a member of a set") from None


def _number(token: str) -> int | float | complex:
    if len(token) > MAX_DIGITS and sum(map(str.isdigit, token)) > MAX_DIGITS and token[1:2] not in "xXoObB":
        raise LiteralError(f"a number has more than {MAX_DIGITS} digits")
    try:
        if token[-1:] in ("j", "J"):
            return complex(0, float(token[:-1]))
        if token[1:2] not in ("x", "X") and any(char in token for char in ".eE"):
            return float(token)
        value = int(token, 0)
    except ValueError:
        raise LiteralError(f"{token[:40]!r} is not a number") from None
    if value >= _TOO_LARGE:
        raise LiteralError(f"a number has more than {MAX_DIGITS} digits")
    return value


def _number_or_sum(number: int | float | complex, tokens: list[str]) -> int | float | complex:
    """`number`, or the complex number that it begins, such as 1+2j."""
    sign = tokens[-1]
    if sign not in ("+", "-") or isinstance(number, complex):
        return number
    tokens.pop()
    imaginary = _number(tokens.pop())
    if not isinstance(imaginary, complex):
        raise LiteralError("arithmetic is not evaluated")
    return number + imaginary if sign == "+" else number - imaginary


def _is_string(token: str) -> bool:
    return '"' in token or "'" in token


def _strings(tokens: list[str]) -> str | bytes:
    """Adjacent strings are one string, as in Python."""
    value = _string(tokens.pop())
    while _is_string(tokens[-1]):
        more = _string(tokens.pop())
        if isinstance(value, str) and isinstance(more, str):
            value += more
        elif isinstance(value, bytes) and isinstance(more, bytes):
            value += more
        else:
            raise LiteralError("text and bytes stand side by side")
    return value


def _string(token: str) -> str | bytes:
    quote = token[-1]
    start = token.find(quote)
    prefix = token[:start].lower()
    width = 3 if token.startswith(quote * 3, start) and len(token) >= start + 6 else 1
    body = token[start + width : -width]
    closed = token.endswith(quote * width) and len(token) >= start + 2 * width
    # A quote that a backslash hides does not close: the body would then end in an odd number of backslashes.
    if quote not in "\"'" or not closed or (len(body) - len(body.rstrip("\\"))) % 2:
        raise LiteralError("a string is not closed")
    if prefix not in ("", "r", "u", "b", "br", "rb"):
        raise LiteralError(f"{prefix!r} is no string prefix")
    if width == 3:
        body = body.replace("\r\n", "\n").replace("\r", "\n")
    if "b" in prefix:
        if not body.isascii():
            raise LiteralError("bytes hold ASCII characters only")
        return (body if "r" in prefix else _BYTES_ESCAPE.sub(_unescape_byte, body)).encode("latin-1")
    return body if "r" in prefix or "\\" not in body else _ESCAPE.sub(_unescape, body)


def _unescape(match: re.Match[str]) -> str:
    octal, hex_2, hex_4, hex_8, name, other = match.groups()
    if octal:
        return chr(int(octal, 8))
    if name is not None:
        try:
            return unicodedata.lookup(name)
        except KeyError:
            raise LiteralError(f"no character is named {name[:40]!r}") from None
    if other is None:
        code = int(hex_2 or hex_4 or hex_8, 16)
        if code > 0x10FFFF:
            raise LiteralError(f"there is no character \\U{hex_8}")
        return chr(code)
    if other in ("x", "u", "U", "N"):
        raise LiteralError(f"the escape \\{other} is cut short")
    return "" if other == "\r\n" else _SIMPLE_ESCAPES.get(other, match[0])


def _unescape_byte(match: re.Match[str]) -> str:
    octal, hex_2, *_, other = match.groups()
    if octal or hex_2:
        return chr(int(octal, 8) & 0xFF if octal else int(hex_2, 16))
    if other == "x":
        raise LiteralError("the escape \\x is cut short")
    return "" if other == "\r\n" else _SIMPLE_ESCAPES.get(other, match[0])
