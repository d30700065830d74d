"""Which calls an episode makes again: an agent that is stuck, and the echo trap of training, look like this."""

from collections.abc import Sequence

from textcraft import tools


def repeated(replies: Sequence[str]) -> list[bool]:
    """Whether each reply makes a call that one before it has made. Spaces, the order of ingredients and the text around
    a call make no difference. A reply without a call is compared as a whole."""
    seen: set[str] = set()
    again = []
    for reply in replies:
        call = _call(reply)
        again.append(call in seen)
        seen.add(call)
    return again


def _call(reply: str) -> str:
    # The last call: thoughts before the answer may try others.
    _, tag, rest = reply.rpartition("<tool>")
    call = tools.parse(tag + rest)
    if isinstance(call, tools.Craft):
        return repr((sorted(map(repr, call.ingredients.items())), tuple(call.target)))
    return "".join(rest.partition("</tool>")[0].split())
