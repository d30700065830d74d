"""Chats as tokens: an append-only token list with an action mask, for any Hugging Face chat template.

A chat template renders a whole conversation, and many render its earlier messages differently once later ones follow
(Qwen3's drops thinking). Re-rendering each turn would then show the trainer other tokens than the model sampled from.
So the template is only asked for what is new: the opening once, and after each reply the text that it puts between the
end of that reply and the start of the next one. Replies enter as the tokens that were sampled, never re-tokenised.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from tinker_client.errors import UserError
from tinker_client.models import Tokenizer

Message = Mapping[str, Any]

# Templates without a thinking mode ignore it; those with one open an empty think block, so that replies start directly.
TEMPLATE_KWARGS: Mapping[str, Any] = {"enable_thinking": False}

_REPLY = "REPLY-7d1f"  # a dummy reply; found again in the rendered text


class ChatTemplate:
    """The pieces that a tokenizer's chat template adds to a growing conversation, as tokens.

    stop_token_ids: the tokens that end a reply; the first that the template itself writes after a reply completes
    replies that were cut off.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop_token_ids: Sequence[int], kwargs: Mapping[str, Any] = TEMPLATE_KWARGS
    ) -> None:
        self.tokenizer = tokenizer
        self.stop_token_ids = list(stop_token_ids)
        self._kwargs = dict(kwargs)
        special = sorted(
            (t.content for t in tokenizer.added_tokens_decoder.values() if t.special), key=len, reverse=True
        )
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self.end_of_message = self._after_reply("")[1]

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of the messages before the first reply, with the template's generation prompt."""
        try:
            return self._encode(self._render(messages))
        except jinja2.TemplateError:
            # Some templates know no system role (Gemma's); there, instructions belong into the first user message.
            if messages[0]["role"] != "system":
                raise
            system, user, *rest = messages
            return self._encode(self._render([{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]))

    def reply(self, text: str) -> list[int]:
        """A reply that nobody sampled, such as a demonstration's: its tokens and the end of the message."""
        return [*self._encode(text), self.end_of_message]

    def observation(self, text: str) -> list[int]:
        """What follows the end-of-message token of a reply: the user message `text` and the generation prompt.

        Special tokens spelled out in `text` (an observation can repeat what a model wrote) stay ordinary text.
        """
        if self._special is not None:
            text = self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return self._after_reply(text)[0]

    def decode_reply(self, tokens: Sequence[int]) -> str:
        """The text of a reply, without the stop token that ends it."""
        body = tokens[:-1] if self.ends_reply(tokens) else tokens
        text: str = self.tokenizer.decode(list(body), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def ends_reply(self, tokens: Sequence[int]) -> bool:
        """Whether a sampled reply ends with a stop token, rather than at the token cap."""
        return bool(tokens) and tokens[-1] in self.stop_token_ids

    def _after_reply(self, observation: str) -> tuple[list[int], int]:
        """The tokens between a reply's end-of-message token and the next reply, and that end-of-message token."""
        rendered = self._render(
            [
                {"role": "user", "content": "."},
                {"role": "assistant", "content": _REPLY},
                {"role": "user", "content": observation},
            ]
        )
        tokens = self._encode(rendered[rendered.index(_REPLY) + len(_REPLY) :])
        end = next((i for i, token in enumerate(tokens) if token in self.stop_token_ids), None)
        if end is None:
            raise UserError(
                "the model's chat template writes no stop token after a reply: use a chat model's tokenizer"
            )
        return tokens[end + 1 :], tokens[end]

    def _render(self, messages: Sequence[Message]) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **self._kwargs
        )
        return text

    def _encode(self, text: str) -> list[int]:
        # The template writes the special tokens itself, the one at the beginning included.
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens


class Conversation:
    """The tokens of one episode or demonstration; all three lists have the length of `tokens`.

    tokens: everything the model has read and written, in order. Only ever appended to.
    is_action: whether the loss is on the token: sampled (or demonstrated) by the model, its stop token included.
    logprobs: of sampled tokens under the policy that sampled them; 0.0 elsewhere. An array, because the garbage
    collector looks at every element of every list, and hundreds of episodes are in memory at once.
    """

    def __init__(self, template: ChatTemplate, opening: Sequence[Message]) -> None:
        self._template = template
        self.tokens: list[int] = template.opening(opening)
        self.is_action: list[bool] = [False] * len(self.tokens)
        self.logprobs = array("d", [0.0] * len(self.tokens))

    @property
    def action_tokens(self) -> int:
        """Number of tokens with a loss."""
        return sum(self.is_action)

    def add_reply(
        self, tokens: Sequence[int], logprobs: Sequence[float] | None = None, *, trained: bool = True
    ) -> None:
        """Append a reply. One that was cut off is closed with the end-of-message token, which is then no action.

        logprobs: one a token, for sampled replies. trained: False keeps the reply as context without a loss.
        """
        self._append(tokens, trained, logprobs)
        if not tokens or tokens[-1] != self._template.end_of_message:
            self._append([self._template.end_of_message], False)

    def add_observation(self, text: str) -> None:
        """Append what the environment answered, as a user message, and the generation prompt of the next reply."""
        self._append(self._template.observation(text), False)

    def _append(self, tokens: Sequence[int], is_action: bool, logprobs: Sequence[float] | None = None) -> None:
        if logprobs is not None and len(logprobs) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens with {len(logprobs)} logprobs")
        self.tokens.extend(tokens)
        self.is_action.extend([is_action] * len(tokens))
        self.logprobs.extend([0.0] * len(tokens) if logprobs is None else logprobs)


def demonstration(template: ChatTemplate, messages: Sequence[Message]) -> Conversation:
    """The conversation of a chat whose assistant messages carry a loss unless their "weight" is 0.

    messages: the opening (system and user), then assistant and user in turn, ending with an assistant message.
    """
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    conversation = Conversation(template, messages[:first])
    for message in messages[first:]:
        if message["role"] == "assistant":
            conversation.add_reply(template.reply(message["content"]), trained=message.get("weight", 1) != 0)
        else:
            conversation.add_observation(message["content"])
    return conversation
