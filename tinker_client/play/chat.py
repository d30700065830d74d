"""Chats as tokens: an append-only token list with an action mask, for any Hugging Face chat template.

A chat template renders a whole conversation, and many render its earlier messages differently once later ones follow
(Qwen3's drops thinking). Re-rendering each turn would then show the trainer other tokens than the model sampled from.
So the template is only asked for what is new: the opening once, and after each reply the text that it puts between the
end of that reply and the start of the next one. Replies enter as the tokens that were sampled, never re-tokenised.
`ChatTemplate.difference` says in one line where this differs from the template's rendering of the whole conversation.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jinja2
from rich.console import Console

from tinker_client.connection import models
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, as_trained
from tinker_client.connection.models import Tokenizer
from tinker_client.errors import UserError
from tinker_client.run.run_dir import SavedState

Message = Mapping[str, Any]

THINKING_STARTS, THINKING_ENDS = "<think>", "</think>"

_REPLY = "REPLY-7d1f"  # a dummy reply; found again in the rendered text


class ChatTemplate:
    """The pieces that a tokenizer's chat template adds to a growing conversation, as tokens.

    stop_token_ids: the tokens that end a reply; the first that the template itself writes after a reply completes
    replies that were cut off.
    thinking: let the model think before it answers, where its template has such a mode; other templates ignore it.
    Without it, such a template opens and closes an empty thinking block, so that replies start directly.
    """

    def __init__(self, tokenizer: Tokenizer, stop_token_ids: Sequence[int], *, thinking: bool = False) -> None:
        self.tokenizer = tokenizer
        self.stop_token_ids = list(stop_token_ids)
        self.thinking = thinking
        special = sorted(
            (t.content for t in tokenizer.added_tokens_decoder.values() if t.special), key=len, reverse=True
        )
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self.end_of_message = self._after_reply("")[1]
        self._before_reply = self._prefix_of_written_replies()

    @classmethod
    def of(cls, backend: Backend) -> Self:
        """The template of a server's model. Says in one line on stderr where it differs from its own rendering."""
        template = cls(backend.tokenizer, backend.stop_token_ids, thinking=backend.thinking)
        if difference := template.difference():
            Console(stderr=True, soft_wrap=True, highlight=False).print(f"note: {difference}", markup=False)
        return template

    @classmethod
    def before_connecting(cls, config: BackendConfig, init: SavedState | None = None) -> Self | None:
        """The template of the model that the flags name; None if only the server knows which that is.

        init: the state to start from. Raises UserError for what connecting to that model would be refused for.
        """
        folder = None
        if config.is_local:
            if init is not None and init.run_dir is not None:
                config = as_trained(config, init.run_dir)
            folder = models.local_model_dir(config.model)
        name = config.tokenizer or (str(folder) if folder else config.model)
        if name is None:
            return None
        tokenizer = models.load_tokenizer(name)
        if folder is not None:
            models.check_vocabulary(tokenizer, folder)
        return cls(tokenizer, models.stop_token_ids(tokenizer), thinking=config.thinking)

    def problem(self, chat: Sequence[Message]) -> str | None:
        """What of a written chat the model would not read as it is written, None if nothing.

        A special token in a text is what it stands for, such as the end of the message and the beginning of another.
        """
        for message in chat:
            if self._special is not None and (found := self._special.search(message["content"])):
                return f"{found[0]} in what the {message['role']} says is a special token of the model: leave it out"
        first = next(i for i, message in enumerate(chat) if message["role"] == "assistant")
        text = self._opening(chat[:first])
        for message in chat[:first]:
            if message["content"].strip() not in text:
                return f"the model's chat template writes what the {message['role']} says in another way: change it"
        return None

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of the messages before the first reply, with the template's generation prompt."""
        return self._encode(self._opening(messages))

    def _opening(self, messages: Sequence[Message]) -> str:
        try:
            return self._render(messages)
        except jinja2.TemplateError:
            # Some templates know no system role (Gemma's); there, instructions belong into the first user message.
            if messages[0]["role"] != "system":
                raise
            system, user, *rest = messages
            return self._render([{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest])

    def reply(self, text: str) -> list[int]:
        """A reply that nobody sampled, such as a demonstration's: its tokens and the end of the message.

        With `thinking`, it starts with the empty thinking block that the template gives a reply without thoughts.
        """
        return [*self._encode(self._before_reply + text), self.end_of_message]

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

    def answer(self, reply: str) -> str:
        """What of a reply's text is said to the environment: with `thinking`, what comes after the thoughts.

        A reply that was cut off while it thought says nothing.
        """
        if not self.thinking or not self._before_reply:
            return reply
        _thoughts, end, answer = reply.rpartition(THINKING_ENDS)
        if end:
            return answer.lstrip("\n")
        begun_by_template = THINKING_STARTS not in self._before_reply
        return "" if begun_by_template or THINKING_STARTS in reply else reply

    def difference(self) -> str | None:
        """Where the tokens of a growing conversation are not those that the template makes of the whole, in one line.

        None if there is no difference in a conversation of one reply and one observation.
        """
        opening: list[Message] = [{"role": "user", "content": "."}]
        ours = [*self.opening(opening), *self.reply(_REPLY), *self.observation(".")]
        whole = self._encode(self._render([*opening, {"role": "assistant", "content": _REPLY}, *opening]))
        if ours == whole:
            return None
        sent, rendered = self.tokenizer.decode(ours), self.tokenizer.decode(whole)
        pairs = enumerate(zip(sent, rendered, strict=False))
        start = next((i for i, (a, b) in pairs if a != b), min(len(sent), len(rendered)))
        return (
            f"the chat template renders earlier replies anew ({rendered[start : start + 20]!r}... in place of "
            f"{sent[start : start + 20]!r}...); sent is what was read and sampled, unchanged"
        )

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

    def _prefix_of_written_replies(self) -> str:
        """What the template writes between the generation prompt and a reply without thoughts."""
        question: Message = {"role": "user", "content": "."}
        prompt = self._render([question])
        written = self._render([question, {"role": "assistant", "content": _REPLY}], prompt=False).partition(_REPLY)[0]
        return written.removeprefix(prompt) if written.startswith(prompt) else ""

    def _render(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        return models.render(self.tokenizer, messages, add_generation_prompt=prompt, enable_thinking=self.thinking)

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


def conversation_of(template: ChatTemplate, messages: Sequence[Message]) -> Conversation:
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
